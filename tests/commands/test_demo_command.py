"""`sparsenmt demo`, with a few updates."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparsenmt.assemble import model_directory
from sparsenmt.data import demo_corpus
from sparsenmt.data.prepare import pipeline as prepare
from sparsenmt.decoding import translate
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.storage.files import directory_lock
from sparsenmt.workflows.training import demo
from tests.commands.support import Run
from tests.examples import examples

SMALL = [
    "model.dimension=32",
    "model.feed_forward=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "data.tokenizer.vocabulary_size=150",
    "training.max_updates=4",
    "training.validation.every=4",
    "training.validation.max_sentences=2",
    "decoding.max_length_factor=0",
    "decoding.max_length_offset=5",
]


@pytest.fixture
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    write = demo_corpus.write_demo_corpus
    monkeypatch.setattr(demo, "write_demo_corpus", lambda folder: write(folder, train=200, dev=10, test=10))
    monkeypatch.setenv("SPARSENMT_DEMO", "")


@pytest.mark.usefixtures("small_corpus")
def test_demo(command: Run, workspace: Path) -> None:
    result = command("demo", "--directory", "demo", *SMALL)
    assert result.code == 0, result.err
    shown = result.out.decode()
    assert shown.count("source  ") == shown.count("output  ") == 5
    for word in ("BLEU", "chrF2", "TER", "prepare", "decode"):
        assert word in shown
    assert len((workspace / "demo/test.output").read_text(encoding="utf-8").split("\n")) == 11
    again = command("demo", "--directory", "demo", *SMALL)
    assert "up to date" in again.err and "nothing is left to do" in again.err
    assert command("demo", "--directory", "demo", *SMALL, "training.seed=2").code == 2


STAGES: list[tuple[ModuleType, str, int]] = [
    (demo_corpus, "write_lines", 1),
    (demo_corpus, "write_lines", 8),
    (prepare, "write_manifest", 1),
    (model_directory, "write_weights", 1),
    (translate, "encoded_batch", 1),  # of the validation before the first update
    (translate, "encoded_batch", 3),  # the second is a validation's
    (demo, "write_lines", 1),
    (demo, "corpus_scores", 1),
]


@pytest.mark.usefixtures("small_corpus")
@examples(("module", "function", "call"), STAGES, fast=STAGES[::3])
def test_an_interrupt_at_any_stage(
    command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str, call: int
) -> None:
    """The second run ends as an undisturbed one does."""
    original, calls = getattr(module, function), list[int]()

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise Interrupted(signal.SIGINT)
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, function, interrupted)
        result = command("demo", "--directory", "demo", *SMALL)
    assert result.code == 130, result.err
    assert "Resume with: sparsenmt demo --directory demo" in result.err
    assert command("demo", "--directory", "demo", *SMALL).code == 0
    assert command("demo", "--directory", "whole", *SMALL).code == 0
    for name in ("test.output", "model/weights.safetensors"):
        assert (workspace / "demo" / name).read_bytes() == (workspace / "whole" / name).read_bytes()
    assert not list((workspace / "demo").rglob("*.partial"))


@pytest.mark.usefixtures("small_corpus")
def test_two_at_once(command: Run, workspace: Path) -> None:
    (workspace / "demo").mkdir()
    with directory_lock(workspace / "demo", "is the first"):
        result = command("demo", "--directory", "demo", *SMALL)
    assert result.code == 2 and "demo: another process runs the demo here" in result.err


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--directory", "small.yaml"], ["small.yaml"]),
        (["--directory", "new", "trainig.seed=1"], ["trainig", "training"]),
        (["nonsense"], ["nonsense", "key=value"]),
    ],
)
def test_mistakes(command: Run, workspace: Path, arguments: list[str], messages: list[str]) -> None:
    result = command("demo", *arguments)
    assert result.code == 2 and "Traceback" not in result.err
    for message in messages:
        assert message in result.err


def test_a_mistake_shows_before_the_corpus_is_written(refused: Callable[..., str]) -> None:
    refused("demo", "--directory", "new", "nonsense=1")
