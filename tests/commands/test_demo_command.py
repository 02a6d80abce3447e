"""`sparsenmt demo`, with a few updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.data import demo_corpus
from tests.commands.support import Run

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


def test_demo(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = demo_corpus.write_demo_corpus
    monkeypatch.setattr(demo_corpus, "write_demo_corpus", lambda folder: write(folder, train=200, dev=10, test=10))
    monkeypatch.setenv("SPARSENMT_DEMO", "")
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
