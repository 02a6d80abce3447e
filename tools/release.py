"""Build the source distribution and the wheel of a release, check both, and try the wheel on several Pythons.

    python -m tools.release [--output dist] [--python 3.11 ...] [--trial]

1. Version: package, CITATION.cff and the newest section of CHANGELOG.md name the same one, with a date, and nothing is
   left under "Unreleased". `--trial` only tells what differs.
2. Build: `python -m build` makes the source distribution, and the wheel from it, with kernels for all instruction sets.
3. Check: `twine check --strict` (metadata, rendering of README.md); on Linux `auditwheel show` must find the libraries
   consistent with the wheel's platform tag.
4. Try: for each Python a fresh virtual environment gets the wheel and the versions of constraints.txt, with no compiler
   on PATH. There `sparsenmt doctor` must use the wheel's kernels, `sparsenmt demo` must run to its end, and
   `sparsenmt check-method` must pass the plugin of examples/plugin.

The wheel's libraries are loaded by ctypes, so one wheel serves every Python of a platform. Nothing is uploaded. Ends
with one JSON line: name, version, files, pythons (version -> seconds of each part, or the reason why it was not tried),
ok. The exit code is 1 if a check fails or no Python could be tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


class ReleaseError(Exception):
    """A check of the release that failed."""


@dataclass(frozen=True)
class Versions:
    """The versions that the files of a checkout name.

    Args:
        package: `sparsenmt.__version__`.
        citation: of CITATION.cff.
        newest: of the newest dated section of CHANGELOG.md, or None.
        unreleased: True if CHANGELOG.md lists changes under "Unreleased".
    """

    package: str
    citation: str
    newest: str | None
    unreleased: bool

    @classmethod
    def read(cls, root: Path) -> Versions:
        """Read them from the files of a checkout."""
        package = re.search(r'^__version__ = "(.+)"$', _text(root / "sparsenmt/__init__.py"), re.M)
        citation = re.search(r"^version: (.+)$", _text(root / "CITATION.cff"), re.M)
        changes = _text(root / "CHANGELOG.md")
        newest = re.search(r"^## \[(\d[^\]]*)\] - \d{4}-\d{2}-\d{2}$", changes, re.M)
        unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", changes, re.M | re.S)
        if package is None or citation is None:
            raise ReleaseError("sparsenmt/__init__.py or CITATION.cff names no version")
        return cls(
            package[1], citation[1].strip("\"'"), newest and newest[1], bool(unreleased and unreleased[1].strip())
        )

    def mistakes(self) -> list[str]:
        """Return what stands in the way of a release, a sentence each; an empty list if nothing does."""
        found = []
        if not _VERSION.fullmatch(self.package):
            found.append(f"sparsenmt/__init__.py: {self.package} is not of the form 1.2.3")
        if self.citation != self.package:
            found.append(f"CITATION.cff: version {self.citation}, the package has {self.package}")
        if self.newest != self.package:
            newest = (
                f"the newest dated section is {self.newest}" if self.newest else "no section has a version and a date"
            )
            found.append(f"CHANGELOG.md: {newest}; the package has {self.package}")
        if self.unreleased:
            found.append('CHANGELOG.md: move the changes under "Unreleased" to a section with version and date')
        return found


def _text(path: Path) -> str:
    return path.read_bytes().decode()


def find_pythons(wanted: tuple[str, ...]) -> dict[str, Path | None]:
    """Version -> an interpreter, from PATH or pyenv; None where none is found."""
    return {version: next(_interpreters(version), None) for version in wanted}


def _interpreters(version: str) -> Iterator[Path]:
    """Interpreters of a version that start, the candidates on PATH before those of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    for path in ([Path(on_path)] if on_path else []) + sorted(root.glob(f"versions/{version}.*/bin/python")):
        asked = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        if asked.returncode == 0 and asked.stdout.strip() == version:
            yield path


def platform_of(wheel: str) -> str:
    """The platform tag in the file name of a wheel, such as ``manylinux_2_28_x86_64``."""
    return wheel.removesuffix(".whl").rpartition("-")[2]


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """Run a command; returns its output.

    Raises:
        ReleaseError: it failed; the message ends with the last lines that it printed.
    """
    print("+", *command, file=sys.stderr, flush=True)
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=os.environ | environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        last = "\n".join(done.stdout.rstrip("\n").split("\n")[-15:])
        raise ReleaseError(f"exit code {done.returncode} of {' '.join(map(str, command))}\n{last}")
    return done.stdout


def build(output: Path) -> tuple[Path, Path]:
    """Build the source distribution, and from it the wheel; returns both."""
    with tempfile.TemporaryDirectory(prefix="sparsenmt-release-") as made:
        run(sys.executable, "-m", "build", "--outdir", made, ROOT, SPARSENMT_WHEEL_KERNELS="1")
        (source,), (wheel,) = Path(made).glob("*.tar.gz"), Path(made).glob("*.whl")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(source, output)), Path(shutil.copy2(wheel, output))


def check(source: Path, wheel: Path) -> None:
    """Check the metadata of both, the rendering of README.md, and the platform tag of the wheel."""
    run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    if sys.platform != "linux":
        return
    platform = platform_of(wheel.name)
    if not platform.startswith("manylinux"):
        raise ReleaseError(f"{wheel.name}: its kernels need a newer Linux than PyTorch's wheels; build on an older one")
    shown = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
    consistent = re.search(r'consistent with the following platform tag: "([^"]+)"', shown)
    if consistent is None or _glibc(consistent[1]) > _glibc(platform):
        raise ReleaseError(f"{wheel.name}: auditwheel says: {shown}")


def _glibc(platform: str) -> tuple[int, ...]:
    """The version of glibc in a tag ``manylinux_2_28_x86_64``; a large one for other tags."""
    found = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    return (int(found[1]), int(found[2])) if found else (999,)


def try_wheel(python: Path, wheel: Path) -> dict[str, float]:
    """Install a wheel into a fresh environment and use it there; returns the seconds of each part."""
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="sparsenmt-try-") as name:
        folder = Path(name)
        run(python, "-m", "venv", folder / "venv")
        bin_folder = folder / "venv" / "bin"
        # pip builds nothing here: every dependency has a wheel, and the template is of Python alone.
        alone = {"PATH": str(bin_folder), "CXX": "", "PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
        template = shutil.copytree(ROOT / "examples" / "plugin", folder / "plugin")
        pip: list[str | Path] = [
            bin_folder / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        parts: dict[str, list[str | Path]] = {
            "install": [*pip, "-c", ROOT / "constraints.txt", wheel, template],
            "doctor": [bin_folder / "sparsenmt", "doctor"],
            "demo": [bin_folder / "sparsenmt", "demo"],
            "check-method": [bin_folder / "sparsenmt", "check-method", "sparsenmt_sink"],
        }
        for part, command in parts.items():
            began = time.monotonic()
            shown = run(*command, folder=folder, **alone)
            seconds[part] = round(time.monotonic() - began, 1)
            if part == "doctor" and str(folder / "venv") not in shown:
                raise ReleaseError(f"{wheel.name}: `sparsenmt doctor` does not use the kernels of the wheel\n{shown}")
    return seconds


def main() -> None:
    """Build, check and try a release; prints what was done, and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the built files (default: dist)")
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="X.Y", help="Pythons that try the wheel")
    parser.add_argument("--trial", action="store_true", help="only tell where versions or the changelog are not ready")
    options = parser.parse_args()
    versions = Versions.read(ROOT)
    tried: dict[str, dict[str, float] | str] = {}
    files: list[str] = []
    try:
        if mistakes := versions.mistakes():
            print("\n".join(mistakes), file=sys.stderr)
            if not options.trial:
                raise ReleaseError("the release is not ready; `--trial` builds and tries it all the same")
        source, wheel = build(options.output)
        files = [source.name, wheel.name]
        check(source, wheel)
        for version, python in find_pythons(tuple(options.python)).items():
            tried[version] = "no such interpreter on PATH or in pyenv" if python is None else try_wheel(python, wheel)
            print(f"Python {version}: {tried[version]}", flush=True)
        if not any(isinstance(each, dict) for each in tried.values()):
            raise ReleaseError("no Python could be tried")
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        print(
            json.dumps({"name": "release", "version": versions.package, "files": files, "pythons": tried, "ok": False})
        )
        sys.exit(1)
    print(json.dumps({"name": "release", "version": versions.package, "files": files, "pythons": tried, "ok": True}))


if __name__ == "__main__":
    main()
