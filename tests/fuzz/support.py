"""Command lines that are run by the thousand: what every one of them must keep, and how many there were.

A *case* is what hypothesis makes up: a recipe, a corpus, damage to a model, a text; the command lines that are run on
it are judged together. Cases are drawn from a fixed seed: the fast suite and the slow one find the same every time.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from sparsenmt.cli import run
from sparsenmt.data.demo_corpus import write_demo_corpus
from tests.commands.support import Result

T = TypeVar("T")
Files = dict[str, bytes | None]
"""Contents by path; None: a directory. Paths of directories end with a slash."""

CASES = {
    "recipes": (40, 200, 5000),
    "corpora": (10, 75, 1300),
    "checkpoints": (10, 75, 1300),
    "stdin": (20, 150, 2600),
}
"""Cases of the fast, of the thorough and of the slow suite."""

RECIPE = """\
name: small
directory: model
model: {dimension: 8, feed_forward: 8, heads: 2, encoder_layers: 1, decoder_layers: 1, max_positions: 24}
data:
  directory: prepared
  source_language: en
  target_language: de
  train: [{name: demo, source: corpus/train.en, target: corpus/train.de}]
  dev: {source: corpus/dev.en, target: corpus/dev.de}
  tokenizer: {kind: bpe, vocabulary_size: 80, normalization: identity}
training:
  device: cpu
  compute_dtype: fp32
  threads: 1
  max_updates: 4
  batch_tokens: 256
  learning_rate: 3e-3
  warmup_updates: 2
  validation: {every: 2, metric: bleu, beam_size: 2, max_sentences: 2}
  save_every: 1
  keep_last: 3
decoding: {beam_size: 2, max_length_factor: 0.5, max_length_offset: 5}
"""

LOG = re.compile(r"(.*/)?sparsenmt-error-.*\.log")
_ERROR = re.compile(r"^[eE]rror: ", re.MULTILINE)


def sizes(name: str) -> list[object]:
    """The numbers of cases of a test module, as parameters of its test."""
    suites = ((), (pytest.mark.thorough,), (pytest.mark.slow,))
    return [pytest.param(n, id=f"{n}-cases", marks=marks) for n, marks in zip(CASES[name], suites, strict=True)]


@dataclass
class Tally:
    """What was run."""

    cases: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Command lines by subcommand and exit code."""

    def describe(self) -> str:
        """One line for people."""
        codes = ", ".join(f"{count:,} x {name}" for name, count in sorted(self.codes.items()))
        return f"{self.cases:,} cases, {self.codes.total():,} command lines: {codes}"


class Lab:
    """The folder that cases are run in, and what ran there. It is the working directory.

    Args:
        folder: a new one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tally = Tally()
        self._streams = [(folder.parent / name).open("w+b") for name in ("out", "err")]

    def run(self, *arguments: str | Path, stdin: bytes = b"", codes: tuple[int, ...] = (0, 2)) -> Result:
        """Run a command line, and check what holds for all of them.

        Args:
            codes: the exit codes that are promised.
        """
        words = [str(argument) for argument in arguments]
        descriptors = [stream.fileno() for stream in self._streams]
        with _standard_streams(stdin, descriptors):
            code = run(words)
        out, err = (os.pread(each, os.fstat(each).st_size, 0) for each in descriptors)
        result = Result(code, out, err.decode("utf-8"))
        self.tally.codes[f"{words[0]} -> {code}"] += 1
        assert code in codes, f"{words}\n{result.err}"
        self._check(words, result)
        return result

    def _check(self, words: list[str], result: Result) -> None:
        said = f"{words}\n{result.err}"
        assert "Traceback" not in result.err and b"Traceback" not in result.out, said
        after = self.files()
        assert not [name for name in after if LOG.fullmatch(name)], said
        if result.code != 2:
            assert not _ERROR.search(result.err), said
            return
        assert len(_ERROR.findall(result.err)) == 1, said
        message = _ERROR.split(result.err)[1].rstrip("\n")
        first, *others = message.split("\n")
        assert first.strip(), said
        # A mistake of the command line has click's message, every other a remedy below it.
        assert "\nError: " in f"\n{result.err}" or any(line.startswith("  ") and line.strip() for line in others), said
        assert all(one.isprintable() for one in result.err if one != "\n"), said

    def files(self) -> Files:
        """Everything in the folder."""
        return read_files(self.folder)

    def set(self, files: Files) -> None:
        """Leave these files in the folder, and no others."""
        for path in self.folder.iterdir():
            remove(path)
        write_files(self.folder, files)


def train_small_model(lab: Lab) -> Files:
    """The files of a finished run: corpus/, prepared/, model/ and small.yaml. They are left in the folder."""
    write_demo_corpus(lab.folder / "corpus", train=40, dev=4, test=4)
    (lab.folder / "small.yaml").write_text(RECIPE, encoding="utf-8", newline="\n")
    for command in ("prepare", "train"):
        assert lab.run(command, "small.yaml").code == 0
    lab.tally.codes.clear()
    return lab.files()


@contextmanager
def _standard_streams(stdin: bytes, descriptors: list[int]) -> Iterator[None]:
    """Standard streams as a program has them in a pipe, in memory; libraries that are not Python's write there too."""
    saved = [os.dup(number) for number in (1, 2)]
    streams = sys.stdin, sys.stdout, sys.stderr
    for stream in streams[1:]:
        stream.flush()
    try:
        for number, descriptor in enumerate(descriptors, start=1):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.dup2(descriptor, number)
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        sys.stdout = open(1, "w", encoding="utf-8", newline="\n", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", newline="\n", closefd=False, errors="backslashreplace")  # noqa: SIM115
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, descriptor in enumerate(saved, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def explore(name: str, lab: Lab, cases: int, strategy: SearchStrategy[T], check: Callable[[T], None]) -> None:
    """Check as many cases as asked for; a case that fails is made as small as possible, and shown.

    Raises:
        AssertionError: a case fails, or the strategy has fewer cases.
    """

    @seed(zlib.crc32(name.encode()))  # `derandomize` would do it too, by the source of this function alone
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(case: T) -> None:
        check(case)
        lab.tally.cases += 1

    before = lab.tally.cases
    each()
    assert lab.tally.cases >= before + cases


def report(name: str, lab: Lab, cases: int) -> None:
    """Print what was run; AssertionError if it is less than was asked for."""
    print(f"\n{name}: {lab.tally.describe()}")
    assert lab.tally.cases >= cases


def read_files(folder: Path) -> Files:
    """Everything in a folder; what a link leads to is not looked at."""
    found: Files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.fsencode(os.readlink(path))
        elif path.is_dir():
            found[f"{name}/"] = None
        else:
            found[name] = path.read_bytes()
    return found


def write_files(folder: Path, files: Files) -> None:
    """Make files and directories in a folder."""
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def remove(path: Path) -> None:
    """Remove a file, a link or a directory with everything in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def changed(before: Files, after: Files) -> list[str]:
    """Names of what differs."""
    return [
        name
        for name in sorted({*before, *after})
        if name not in before or name not in after or before[name] != after[name]
    ]


def below(files: Files, folder: str) -> Files:
    """The files in a folder, by their paths in it."""
    return {name[len(folder) + 1 :]: content for name, content in files.items() if name.startswith(f"{folder}/")}
