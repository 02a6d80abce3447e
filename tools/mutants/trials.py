"""Trials of mutants, in a copy of the checkout: the working tree is never touched.

    python -m tools.mutants [--list] [WORD ...]

A mutant is killed if one of its tests fails; the same tests must pass without it. Kernels are built in the copy. With
words, only mutants whose names contain one of them are tried; ``--list`` shows them and tries none.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.mutants.formulas import FORMULAS
from tools.mutants.kernels import KERNELS
from tools.mutants.mutant import Mutant
from tools.mutants.results import RESULTS

MUTANTS = (*FORMULAS, *RESULTS, *KERNELS)
ROOT = Path(__file__).resolve().parents[2]
COPIED = ("sparsenmt", "tests", "tools", "recipes", "benchmarks", "pyproject.toml")
LIMIT = 120  # seconds a test

# Processes begin with the packages that take long to import, and without the project.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["pytest", "torch", "numpy", "pydantic", "yaml", "sacrebleu.metrics", "sentencepiece"])


@dataclass(frozen=True)
class Trial:
    """The exit status of pytest, the first test that failed (or the last line of the output), and the time."""

    status: int
    reason: str
    seconds: float


def run_tests(checkout: Path, tests: Sequence[str]) -> Trial:
    """Run tests in a checkout up to the first failure."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile() as output:
        process = SERVER.Process(target=_run_pytest, args=(checkout, tests, output.name))
        process.start()
        process.join()
        lines = Path(output.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    assert process.exitcode is not None
    reasons = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return Trial(process.exitcode, (reasons or lines or ["no output"])[0 if reasons else -1], time.monotonic() - began)


def _run_pytest(checkout: Path, tests: Sequence[str], output: str) -> None:
    """Run pytest in this process, which ends; the project's modules are those of the checkout."""
    descriptor = os.open(output, os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    sys.dont_write_bytecode = True  # two mutants of a file may have the same size and time
    settings = {"SPARSENMT_NATIVE": "always", "SPARSENMT_NATIVE_FLAGS": "-O1"}
    os.environ |= {**settings, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-m", "not slow", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line", "--timeout", str(LIMIT)]
    sys.exit(int(pytest.main([*options, *tests])))


def copy_checkout(to: Path) -> None:
    """Copy what the tests need, without kernels: those of the copy, and of its mutants, are built when tests begin."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__", ".venvs", "_kernels"))
        else:
            shutil.copy2(source, to / name)


def try_mutant(mutant: Mutant, checkout: Path) -> Trial:
    """Make the mutant, run its tests, and undo it."""
    path = checkout / mutant.file
    before = path.read_text(encoding="utf-8")
    if before.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.file}: the text of the mutant {mutant.name!r} is there {before.count(mutant.old)} times"
        )
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return run_tests(checkout, mutant.tests)
    finally:
        path.write_text(before, encoding="utf-8")


def try_all(chosen: Sequence[Mutant]) -> int:
    """Try mutants in turn, with a line for each; return 1 if one survives."""
    alive, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sparsenmt-mutants-") as folder:
        checkout = Path(folder) / "checkout"
        copy_checkout(checkout)
        whole = run_tests(checkout, sorted({test for mutant in chosen for test in mutant.tests}))
        if whole.status:
            raise SystemExit(f"the tests fail without a mutant: {whole.reason}")
        print(f"{whole.seconds:5.0f} s  without a mutant: {whole.reason}", flush=True)
        for mutant in chosen:
            trial = try_mutant(mutant, checkout)
            if trial.status not in (0, 1):
                raise SystemExit(f"{mutant.name}: pytest ended with {trial.status}, which says nothing: {trial.reason}")
            if trial.status == 0:
                alive.append(mutant.name)
            word = "killed" if trial.status else "ALIVE "
            print(f"{trial.seconds:5.0f} s  {word}  {mutant.name:<64} {trial.reason}", flush=True)
    took = (time.monotonic() - began) / 60
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants are killed, in {took:.0f} min")
    print("".join(f"alive: {name}\n" for name in alive), end="")
    return int(bool(alive))


def main(arguments: Sequence[str]) -> int:
    """List or try the mutants that are chosen."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a mutant's name or of its file's")
    parser.add_argument("--list", action="store_true", help="show the mutants and the tests that must kill each")
    options = parser.parse_args(arguments)
    words = options.words
    chosen = [each for each in MUTANTS if not words or any(w in each.name or w in each.file for w in words)]
    if not chosen:
        parser.error(f"no mutant has {' or '.join(map(repr, words))} in its name or file")
    if options.list:
        for each in chosen:
            print(f"{each.name}\n    in {each.file}\n    killed by {', '.join(each.tests)}")
        return 0
    return try_all(chosen)
