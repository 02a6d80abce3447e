"""``python -m sparsenmt``: the same as the command ``sparsenmt``."""

from sparsenmt.cli import main

if __name__ == "__main__":
    main()
