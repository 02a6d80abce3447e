"""A very small model, trained once for all tests of commands, and a way to run commands."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from sparsenmt.cli import run
from sparsenmt.command import COMMANDS, REPORTS
from sparsenmt.data.demo_corpus import write_demo_corpus
from sparsenmt.metric import METRICS
from sparsenmt.report import plots
from sparsenmt.sparsity.registry import METHODS
from sparsenmt.strategy import STRATEGIES
from tests.commands.support import Diagram, Plugin, Result, Run, diagrams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE = """\
name: small
directory: model
model: {preset: tiny, dimension: 32, feed_forward: 64, heads: 2, encoder_layers: 1, decoder_layers: 1}
data:
  directory: prepared
  source_language: en
  target_language: de
  train: [{name: demo, source: corpus/train.en, target: corpus/train.de}]
  dev: {source: corpus/dev.en, target: corpus/dev.de}
  tokenizer: {vocabulary_size: 150}
training:
  device: cpu
  compute_dtype: fp32
  threads: 1
  max_updates: 12
  batch_tokens: 512
  learning_rate: 3e-3
  warmup_updates: 4
  validation: {every: 6, metric: bleu, beam_size: 2, max_sentences: 4}
  save_every: 4
  keep_last: 3
decoding: {beam_size: 2, max_length_factor: 0.5, max_length_offset: 5}
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpus/, prepared/, model/ and small.yaml. To be left as it is: `workspace` is a copy."""
    folder = tmp_path_factory.mktemp("trained")
    write_demo_corpus(folder / "corpus", train=200, dev=20, test=20)
    (folder / "small.yaml").write_text(RECIPE, encoding="utf-8", newline="\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run(["prepare", "small.yaml"]) == 0
        assert run(["train", "small.yaml"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def workspace(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a copy of ``trained`` that a test may break."""
    folder = tmp_path / "work"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def command(workspace: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run a command line in ``workspace``, in this process; ``stdin`` is bytes."""

    def call(*arguments: str | Path, stdin: bytes = b"") -> Result:
        stream = SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", stream)
        capfdbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        sys.stdout.flush()
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode("utf-8"))

    return call


@pytest.fixture
def refused(command: Run, workspace: Path) -> Callable[..., str]:
    """Run a command line that must be refused: exit code 2, one message, no output, nothing written; the message."""

    def call(*arguments: str | Path, stdin: bytes = b"") -> str:
        before = _listing(workspace)
        result = command(*arguments, stdin=stdin)
        assert result.code == 2, result.err
        assert "Traceback" not in result.err and result.err.count("rror: ") == 1, result.err
        assert result.out == b""
        assert _listing(workspace) == before
        return result.err

    return call


@pytest.fixture
def plugin(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """Write a module into the working directory and name it in SPARSENMT_PLUGINS; at the end all is forgotten."""
    names: list[str] = []

    def write(content: str, name: str = "") -> str:
        name = name or f"odd_plugin_{len(names)}"
        names.append(name)
        (workspace / f"{name}.py").write_text(content, encoding="utf-8", newline="\n")
        monkeypatch.setenv("SPARSENMT_PLUGINS", ",".join(names))
        importlib.invalidate_caches()
        return name

    monkeypatch.syspath_prepend(workspace)
    with ExitStack() as scopes:
        for table in (METHODS, STRATEGIES, METRICS, REPORTS, COMMANDS):
            scopes.enter_context(table.scope())
        yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Diagram]]:
    """The diagrams of every picture that a command saves, by the name of its file; the files are written, too."""
    found: dict[str, list[Diagram]] = {}
    save = plots.save

    def noting(figure: Figure, path: Path) -> None:
        found[path.name] = diagrams(figure)
        save(figure, path)

    monkeypatch.setattr("sparsenmt.report.output_files.save", noting)
    return found


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    """All files, with size and time."""
    found = {path: path.lstat() for path in folder.rglob("*") if not path.is_dir()}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}
