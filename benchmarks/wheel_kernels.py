"""Decoding with the kernels of a wheel, where no compiler is found, beside kernels compiled for this processor.

    python benchmarks/wheel_kernels.py [wheel_base_fp32] [wheel_base_fast]

Builds the wheel of this checkout with kernels for every instruction set, installs it into a virtual environment of its
own (`peers/.venvs/wheel`), and asks `sparsenmt doctor` there, with an empty PATH, which kernels are in use: all must be
the wheel's. Then both sides do the work of `decode_vs_ctranslate2.py` in turns: its libraries with an empty PATH,
and kernels that the machine's compiler builds for its own processor (`build/native`). A ratio of 0.95 means: within 5%.
Ends with one JSON line; the exit code is 0 if every ratio reaches its bar.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from common import FOLDER, Case, Side, command_line, parse, report
from decode_vs_ctranslate2 import BASE, FAST
from peers.environments import ENVIRONMENTS

ROOT = FOLDER.parent
BAR = 0.95
NO_COMPILER = {"PATH": "/nonexistent", "CXX": "", "PYTHONPATH": str(FOLDER)}
"""The checkout is not on the path of modules: the package is the wheel's."""
COMPILER = {
    "SPARSENMT_NATIVE_FLAGS": "-march=native",
    "SPARSENMT_NATIVE_FOLDER": str(ROOT / "build" / "native"),
    "PYTHONPATH": str(FOLDER),
}
FOLDER_OF_WHEEL = ENVIRONMENTS / "wheel"


def run(command: list[str], **environment: str) -> None:
    """Run a command; its output goes to stderr."""
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=ROOT, env=os.environ | environment)


def install() -> Path:
    """Build the wheel and install it into its environment; returns the interpreter."""
    python = FOLDER_OF_WHEEL / "bin" / "python"
    if not python.is_file():
        venv.create(FOLDER_OF_WHEEL, with_pip=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(prefix="sparsenmt-wheel-") as made:
        print("building the wheel", file=sys.stderr, flush=True)
        run([*pip, "wheel", "--no-deps", "--wheel-dir", made, str(ROOT)], SPARSENMT_WHEEL_KERNELS="1")
        (wheel,) = Path(made).glob("*.whl")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        constraints = ["-c", str(ROOT / "constraints.txt")]
        run([*pip, "install", *constraints, "torch", str(wheel)])
        run([*pip, "install", "--no-deps", "--force-reinstall", str(wheel)])  # another build of this version
    return python


def check_in_use(python: Path) -> None:
    """Print the libraries in use where PATH has no compiler; SystemExit if one of them is not the wheel's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARSENMT_NATIVE")}
    with tempfile.TemporaryDirectory(prefix="sparsenmt-doctor-") as scratch:
        path = Path(scratch) / "doctor.json"
        command = [str(python), "-m", "sparsenmt", "doctor", "--json", str(path)]
        # Elsewhere: `python -m` finds a checkout in the working directory first.
        subprocess.run(command, check=True, stdout=sys.stderr, cwd=scratch, env=environment | NO_COMPILER)
        written: dict[str, Any] = json.loads(path.read_bytes())
    for library in written["tables"]["libraries"]:
        print(f"  {library['library']}: {Path(str(library['file'])).name}", flush=True)
        if FOLDER_OF_WHEEL not in Path(str(library["file"])).parents:
            raise SystemExit(f"the kernels of the wheel are not in use: {library}")


def main() -> int:
    parser = command_line(__doc__, 7)
    parser.add_argument("--installed", action="store_true", help="use the wheel that the last run has installed")
    given, _ = parse(parser, ["wheel_base_fp32", "wheel_base_fast"])
    python = FOLDER_OF_WHEEL / "bin" / "python" if given.installed else install()
    check_in_use(python)
    run([str(python), "-m", "sparsenmt.native.build"], **COMPILER)
    script = "workers/decode.py"
    wheel = Side(script, lambda: python, {"named": " from the wheel"}, NO_COMPILER)
    native = Side(script, lambda: python, {"named": " -march=native"}, COMPILER)
    works = {"wheel_base_fp32": BASE, "wheel_base_fast": FAST}
    return report("wheel_kernels", parser, [Case(name, wheel, native, work, BAR) for name, work in works.items()])


if __name__ == "__main__":
    sys.exit(main())
