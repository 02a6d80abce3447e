"""`python -m tools.mutants [--list] [WORD ...]`"""

from __future__ import annotations

import sys

from tools.mutants.trials import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
