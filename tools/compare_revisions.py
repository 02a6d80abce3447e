"""Show that two checkouts of sparsenmt are the same program: same bytes, same numbers, each other's files continued.

    python -m tools.compare_revisions OLD_CHECKOUT NEW_CHECKOUT --work DIR [--old-python P] [--new-python P] [--quick]

The old checkout prepares data, trains small models on the demo corpus, and leaves one training run and one translation
interrupted. Then both checkouts run every case on a copy of that folder, at the same path, in the same order. Standard
output, exit codes and files are compared; what says when, how fast or by which revision something was made is left out.
Messages on standard error may differ. Titles, notes and tables for people may be worded differently, with the same
numbers: such cases are "reworded".

Prints a table, then one line of JSON; the exit code is 1 if anything differs, 2 if the old checkout fails.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.revision_cases import CASES, CORPUS, GROWING, SELECT, Case, write_texts

SERVER = """\
import importlib.util, json, os, runpy, signal, sys
import torch
print(json.dumps(importlib.util.find_spec("sparsenmt").origin), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(job["seconds"])
        for number, (name, flags) in enumerate(job["streams"]):
            os.dup2(os.open(name, flags, 0o644), number)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        sys.argv = ["sparsenmt", *job["arguments"]]
        code = 1
        try:
            runpy.run_module("sparsenmt", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        os._exit(code)
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
"""
"""Loads PyTorch once and forks for every command: that takes more than half of the time of a small command."""

VOLATILE = re.compile(r"time|(.*_)?seconds(_.*)?|.*_per_second|git_(revision|dirty)|numerics|seal")
"""Keys of JSON objects whose values say when, how fast, by which revision or by which kernels something was made."""
PROSE = {"notes", "note", "title"}
"""Keys of JSON objects whose values are sentences for people: their numbers are compared."""
IDENTITY = re.compile(r"/[0-9a-f]{16}/")
"""The part of a path that is made from a model's identity, which may be computed in another way."""
PICTURES = {".png", ".svg"}


class Failed(Exception):
    """The comparison cannot be made."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    compared: str
    difference: str | None
    reworded: str | None
    seconds: float

    @property
    def result(self) -> str:
        """The column of the table that says whether the two checkouts agree."""
        return "DIFFERENT" if self.difference else "reworded" if self.reworded else "same"


class Checkout:
    """Runs the commands of one checkout in one folder.

    Args:
        folder: the checkout.
        python: an interpreter with the dependencies.
        work: the working directory of all commands.
        timeout: seconds that a command may take.
    """

    def __init__(self, folder: Path, python: str, work: Path, timeout: int) -> None:
        self.folder, self.python, self.work, self.timeout = folder, python, work, timeout
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARSENMT")},
            **dict.fromkeys(names, "1"),
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def __enter__(self) -> Checkout:
        self._server = subprocess.Popen(
            [self.python, "-c", SERVER],
            env=self.environment,
            cwd=self.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        origin = Path(self._answer())
        if origin.resolve() != (self.folder / "sparsenmt" / "__init__.py").resolve():
            raise Failed(f"{self.python} imports {origin}, not the package in {self.folder}")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def _answer(self) -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise Failed(f"{self.python} ended early in {self.folder}")
        return json.loads(line)

    def run(self, arguments: Sequence[str], results: Path, stdin: str | None = None) -> int:
        """Run a command; its streams go to ``results``/out and /err. Returns the exit code, negative for a signal."""
        results.mkdir(parents=True)
        write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        source = str(self.work / stdin) if stdin else os.devnull
        streams = [(source, os.O_RDONLY), (str(results / "out"), write), (str(results / "err"), write)]
        request = {"arguments": list(arguments), "streams": streams, "seconds": self.timeout}
        assert self._server.stdin is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return int(self._answer())

    def python_code(self, code: str) -> None:
        """Run lines of Python in the working directory, with the package of this checkout."""
        subprocess.run([self.python, "-c", code], env=self.environment, cwd=self.work, check=True, timeout=self.timeout)

    def interrupt(self, arguments: Sequence[str], output: Path, ready: Callable[[], bool]) -> None:
        """Start a command as a process of its own, and send it SIGINT as soon as ``ready`` is true.

        A busy machine may let it finish before: then its output is removed, and it starts again.
        """
        for _ in range(5):
            process = subprocess.Popen(
                [self.python, "-m", "sparsenmt", *arguments],
                env=self.environment,
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            deadline = time.monotonic() + self.timeout
            while process.poll() is None and not ready() and time.monotonic() < deadline:
                time.sleep(0.002)
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=self.timeout)
            if code == 130:
                return
            if code:
                break
            shutil.rmtree(output) if output.is_dir() else output.unlink()
        raise Failed(f"{' '.join(arguments)} could not be interrupted: exit code {code}")

    def has(self, package: str) -> bool:
        """True if the interpreter can import a package."""
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        return subprocess.run([self.python, "-c", code], env=self.environment).returncode == 0


# The models that both begin with


def build(old: Checkout, logs: Path, quick: bool) -> None:
    """Train, with the old checkout, the models that the cases use."""
    numbers = iter(range(1000))

    def run(*arguments: str) -> None:
        results = logs / f"build-{next(numbers):02}"
        code = old.run(arguments, results)
        if code:
            raise Failed(f"sparsenmt {' '.join(arguments)} gave {code}:\n{(results / 'err').read_bytes().decode()}")

    work = old.work
    old.python_code(CORPUS)
    write_texts(work)
    run("prepare", "small.yaml")
    run("train", "small.yaml")
    # Gates around the border of being closed: some are 0, some are 1, most are between.
    gates = ("model.memory.0.init_log_alpha=-2.2", "training.learning_rate=1e-2")
    run("finetune-l0", "model", "--weight", "0.1", "--updates", "4", "-o", "gated", *gates)
    deep = ("model.decoder_layers=2", "model.depth.name=tied_multi", "training.max_updates=144")
    run("train", "small.yaml", "directory=deep", *deep)
    run(*SELECT)
    run("train", "mixed.yaml")
    # An undisturbed training run, and the same one interrupted.
    run("train", "run.yaml")
    (work / "run").rename(work / "undisturbed")
    old.interrupt(("train", "run.yaml"), work / "run", lambda: any((work / "run").glob("checkpoints/*8/manifest.json")))
    run(*GROWING)
    (work / "grown.de").rename(work / "undisturbed.de")
    old.interrupt(GROWING, work / "grown.de", lambda: (work / ".grown.de.journal").exists())
    if not quick:
        run("prepare", "blocks.yaml")
        run("train", "blocks.yaml")
        run("sweep", "sweep.yaml")
        if old.has("HanTa"):
            run("prepare", "tagged.yaml")
            run("train", "tagged.yaml", "--from", "model", "training.max_updates=2")


# Cases that resume after the old checkout was interrupted


def continued_output(work: Path, errors: str) -> str | None:
    """Compare the resumed output with the undisturbed one; its beginning must have been kept."""
    if (work / "undisturbed.de").read_bytes() != (work / "grown.de").read_bytes():
        return "the output differs from the undisturbed one"
    journal = (work.parent / "base" / ".grown.de.journal").read_bytes()
    kept = re.search(rb'"lines": ?(\d+)', journal)
    if kept is None or not re.search(rf"\b{kept[1].decode()}\b", errors):
        return f"nothing says that lines were kept: {errors.strip()!r}"
    return None


# What is compared


def normalised(path: Path, exact: bool) -> Any:
    """The contents of a file, without what says when, how fast, or by which revision it was made.

    Args:
        exact: False: of sentences for people, only the numbers.
    """
    data = path.read_bytes()
    if path.suffix == ".json":
        return stripped(json.loads(data), exact)
    if path.suffix == ".jsonl":
        return [stripped(json.loads(line), exact) for line in data.split(b"\n") if line]
    if path.suffix == ".csv":
        rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
        volatile = [bool(VOLATILE.fullmatch(name.strip())) for name in rows[0]]
        return [[stripped(cell, exact) for cell, drop in zip(row, volatile, strict=False) if not drop] for row in rows]
    return numbers(data) if path.suffix in (".md", ".txt") and not exact else data


def stripped(value: Any, exact: bool) -> Any:
    """A JSON value without its volatile keys."""
    if isinstance(value, dict):
        if value.keys() == {"bytes", "sha256"}:  # of a file: compared itself, and it may hold a time
            return None
        return {
            key: stripped(each, exact) if exact or key not in PROSE else numbers(json.dumps(each).encode())
            for key, each in value.items()
            if not VOLATILE.fullmatch(key)
        }
    if isinstance(value, str) and not exact:
        return IDENTITY.sub("/", value)
    return [stripped(each, exact) for each in value] if isinstance(value, list) else value


def numbers(text: bytes) -> list[bytes]:
    """The numbers in a text."""
    return re.findall(rb"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?%?", text)


def difference(old: Path, new: Path, exact: bool = False) -> str | None:
    """The first difference between two files or folders; None: they hold the same. Pictures are not compared.

    Args:
        exact: False: of sentences for people, only the numbers count.
    """
    if old.is_dir() or new.is_dir():
        left, right = listing(old), listing(new)
        if left != right:
            return f"{new.name}: files {', '.join(sorted(left ^ right)[:4])}"
        found = (difference(old / name, new / name, exact) for name in sorted(left))
        return next((f"{new.name}/{each}" for each in found if each), None)
    if not old.exists() or not new.exists():
        return f"{new.name} is missing" if old.exists() != new.exists() else f"{new.name} is missing in both"
    if old.suffix in PICTURES or old.read_bytes() == new.read_bytes():
        return None
    left, right = normalised(old, exact), normalised(new, exact)
    return None if left == right else f"{new.name}: {first_difference(left, right)}"


def listing(folder: Path) -> set[str]:
    """The files of a folder, those of locks left out."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "lock" not in path.name and path.suffix not in PICTURES
    }


def first_difference(old: Any, new: Any, where: str = "") -> str:
    """Say where two values differ first."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in old or key not in new:
                return f"{where}.{key} only in the {'old' if key in old else 'new'}"
            if old[key] != new[key]:
                return first_difference(old[key], new[key], f"{where}.{key}")
    if isinstance(old, list) and isinstance(new, list):
        for number, (left, right) in enumerate(zip(old, new, strict=False)):
            if left != right:
                return first_difference(left, right, f"{where}[{number}]")
        return f"{where} {len(old)} and {len(new)} items"
    if isinstance(old, bytes) and isinstance(new, bytes):
        for number, (left, right) in enumerate(zip(old.split(b"\n"), new.split(b"\n"), strict=False), 1):
            if left != right:
                column = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
                begin = max(column - 30, 0)
                return f"{where} line {number}: {left[begin : column + 20]!r}, {right[begin : column + 20]!r}"
    return f"{where} {str(old)[:60]}, {str(new)[:60]}"


class Recorder:
    """Runs the cases with one checkout, and keeps what each wrote: a later case may write the same files again."""

    def __init__(self, checkout: Checkout, results: Path) -> None:
        self.checkout, self.results = checkout, results
        self.seconds: dict[str, float] = {}

    def record(self, case: Case) -> None:
        began = time.perf_counter()
        kept = self.results / re.sub(r"\W+", "-", case.name)
        code = self.checkout.run(case.arguments, kept, case.stdin)
        (kept / "code").write_text(f"{code}\n", encoding="utf-8", newline="\n")
        for name in case.files:
            source = self.checkout.work / name
            if source.exists():
                (kept / "files" / name).parent.mkdir(parents=True, exist_ok=True)
                if name in FRESH:
                    source.rename(kept / "files" / name)
                else:
                    copy = shutil.copytree if source.is_dir() else shutil.copyfile
                    copy(source, kept / "files" / name)
        self.seconds[case.name] = time.perf_counter() - began


FRESH = {"again", "r.json", "r.csv", "r.tsv", "s.json", "student-data-text"}
"""Files and folders that a case creates, and that are removed before the next one."""


def compared(case: Case, old: Path, new: Path, work: Path, exact: bool) -> str | None:
    """The first difference between the results of a case; None: they are the same.

    Args:
        exact: False: of sentences for people, only the numbers count.
    """
    folder = re.sub(r"\W+", "-", case.name)
    old, new = old / folder, new / folder
    errors = (new / "err").read_bytes().decode(errors="replace")
    codes = [(each / "code").read_bytes().decode().strip() for each in (old, new)]
    if codes != ["0", "0"]:
        side = old if codes[0] != "0" else new
        last = (side / "err").read_bytes().decode(errors="replace").strip().split("\n")[-2:]
        return f"exit codes {' and '.join(codes)}: {' '.join(last)[:160]}"
    outputs = [(each / "out").read_bytes() for each in (old, new)]
    shown = [numbers(output) if case.prose and not exact else output for output in outputs]
    if shown[0] != shown[1] and not case.silent:
        return f"stdout: {first_difference(outputs[0], outputs[1])}"
    for name in case.files:
        found = difference(old / "files" / name, new / "files" / name, exact)
        if found:
            return found
    if case.continues == "train":
        return difference(work / "undisturbed", work / "run")
    return continued_output(work, errors) if case.continues else None


def compare_revisions(
    checkouts: Sequence[Path], pythons: Sequence[str], folder: Path, *, quick: bool, timeout: int, only: str = ""
) -> list[Row]:
    """Run all cases with both checkouts in ``folder``, and compare them.

    Both run in ``folder``/work, one after the other, since files may hold absolute paths. What each leaves is then
    moved to ``folder``/old and /new.
    """
    work, base = folder / "work", folder / "base"
    for name in ("work", "base", "old", "new", "logs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    work.mkdir(parents=True)
    recorders: list[Recorder] = []
    for number, name in enumerate(("old", "new")):
        if number:
            shutil.copytree(base, work, symlinks=True)
        with Checkout(checkouts[number], pythons[number], work, timeout) as checkout:
            if not number:
                log(f"training the models with {checkouts[0]}")
                build(checkout, folder / "logs", quick)
                shutil.copytree(work, base, symlinks=True)
                cases = [
                    case
                    for case in CASES
                    if (case.quick or not quick)
                    and re.search(only, case.name)
                    and (case.package is None or checkout.has(case.package))
                ]
            recorders.append(Recorder(checkout, folder / "logs" / name))
            for each, case in enumerate(cases, 1):
                log(f"{name}: {each} of {len(cases)}, {case.name}")
                recorders[-1].record(case)
        if not number:
            work.rename(folder / "old")
    rows = []
    for case in cases:
        seconds = sum(recorder.seconds[case.name] for recorder in recorders)
        results = (recorders[0].results, recorders[1].results)
        found = compared(case, *results, work, exact=False)
        reworded = None if found else compared(case, *results, work, exact=True)
        rows.append(Row(case.name, case.compared, found, reworded, seconds))
    work.rename(folder / "new")
    return rows


def log(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    cells = [("case", "compared", "result", "seconds")]
    cells += [(row.name, row.compared, row.result, f"{row.seconds:.1f}") for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    for number, row in reversed(list(enumerate(rows, 1))):
        if row.difference or row.reworded:
            lines.insert(number + 1, f"    {row.difference or row.reworded}")
    return "\n".join([lines[0], "-" * max(map(len, lines[:1])), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_CHECKOUT")
    parser.add_argument("new", type=Path, metavar="NEW_CHECKOUT")
    parser.add_argument("--work", type=Path, required=True, help="Folder to work in; its contents are replaced.")
    parser.add_argument("--old-python", default=sys.executable, help="Interpreter of OLD_CHECKOUT. [default: this one]")
    parser.add_argument("--new-python", default=sys.executable, help="Interpreter of NEW_CHECKOUT. [default: this one]")
    parser.add_argument("--quick", action="store_true", help="Run only the most telling cases.")
    parser.add_argument("--only", default="", metavar="REGEX", help="Run only cases whose name matches.")
    parser.add_argument("--timeout", type=int, default=120, help="Seconds that one command may take. [default: 120]")
    options = parser.parse_args()
    began = time.perf_counter()
    checkouts = [options.old.resolve(), options.new.resolve()]
    pythons = [os.path.abspath(options.old_python), os.path.abspath(options.new_python)]
    try:
        rows = compare_revisions(
            checkouts, pythons, options.work.resolve(), quick=options.quick, timeout=options.timeout, only=options.only
        )
    except (Failed, subprocess.SubprocessError) as error:
        log(f"error: {error}")
        sys.exit(2)
    different = [row.name for row in rows if row.difference]
    print(table(rows))
    summary = {
        "name": "compare_revisions",
        "cases": len(rows),
        "different": different,
        "reworded": [row.name for row in rows if row.reworded],
        "seconds": round(time.perf_counter() - began),
        "ok": not different,
    }
    print(json.dumps(summary))
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
