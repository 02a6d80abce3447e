"""The time of `python -c "import sparsenmt"`, the interpreter's own start included.

    python benchmarks/import_time.py

The package imports nothing heavy until one of its names is used; the script fails if PyTorch, NumPy, Pydantic, YAML or
click is there after the import. A process that imports nothing takes turns with it, so that the package's own share is
printed, too. The fastest of several runs of each counts. The bar is 0.1 seconds. Ends with one JSON line; the ratio is
0.1 over the seconds: at least 1 is wanted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from common import command_line, parse, verdict
from multi30k import ROOT

BAR_SECONDS = 0.1
HEAVY = ("torch", "numpy", "pydantic", "yaml", "click")
CODES = {"import": "import sparsenmt", "nothing": "pass"}


def seconds(code: str) -> float:
    """Return the seconds of one process of Python."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    return time.perf_counter() - began


def heavy_packages() -> list[str]:
    """Return the heavy packages that the import loads."""
    code = f"import sys, sparsenmt; print(*[name for name in {HEAVY} if name in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode().split()


def main() -> int:
    arguments, _ = parse(command_line(__doc__, 20), ["import_time"])
    loaded = heavy_packages()
    found: dict[str, list[float]] = {name: [] for name in CODES}
    for _ in range(arguments.repeats + 1):
        for name, code in CODES.items():
            found[name].append(seconds(code))
    taken, plain = (min(found[name][1:]) for name in CODES)  # the first ones may write bytecode
    spread = max(found["import"][1:]) / taken - 1
    print(
        f"import_time: {taken:.3f} s, bar {BAR_SECONDS:g} s, spread {spread:.1%}; nothing: {plain:.3f} s, "
        f"the package: {taken - plain:.3f} s; heavy packages: {', '.join(loaded) or 'none'}"
    )
    result = verdict("import_time", {"import_time": BAR_SECONDS / taken}, {"import_time": 1.0})
    result["ok"] = result["ok"] and not loaded
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
