"""`sparsenmt prepare` on bad text and bad places: one message, exit code 2, nothing written."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.support import Run

NEW = "data.directory=new"


def english(workspace: Path) -> bytes:
    return (workspace / "corpus/train.en").read_bytes()


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (lambda text: b"", ["train.en has 0", "train.de has 200"]),
        (lambda text: text + b"more\n", ["train.en has 201", "train.de has 200"]),
        (lambda text: text.replace(b"\n", b"\r"), ["train.en has 1", "only \\n ends a line"]),
        (lambda text: b"\xff" + text, ["train.en, line 1: invalid UTF-8", "iconv"]),
        (lambda text: text[:-1] + b"\xe4\n", ["train.en, line 200: invalid UTF-8"]),
        (lambda text: gzip.compress(text)[:-20], ["train.en: the gzip file ends early"]),
        (lambda text: b"\x1f\x8b" + text, ["train.en: broken gzip file"]),
        (lambda text: b"\n" * 200, ["the filters remove all 200 pairs", "200 by empty"]),
    ],
)
def test_bad_text(
    refused: Callable[..., str], workspace: Path, change: Callable[[bytes], bytes], messages: list[str]
) -> None:
    (workspace / "corpus/train.en").write_bytes(change(english(workspace)))
    shown = refused("prepare", "small.yaml", NEW)
    for message in messages:
        assert message in shown
    assert not list(workspace.glob(".new*")), "nothing half-written"


def test_no_text(refused: Callable[..., str], workspace: Path) -> None:
    for path in workspace.glob("corpus/train.*"):
        path.write_bytes(b"")
    assert "the corpus is empty" in refused("prepare", "small.yaml", NEW)
    (workspace / "corpus/train.en").unlink()
    assert "train.en: no such file" in refused("prepare", "small.yaml", NEW)
    (workspace / "corpus/train.en").mkdir()
    shown = refused("prepare", "small.yaml", NEW)
    assert "train.en: is a directory, not a file" in shown and "correct `data.train.0.source`" in shown


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["small.yaml", "data.directory=small.yaml"], ["small.yaml: is a file"]),
        (["small.yaml", "data.directory=small.yaml/x"], ["cannot be created"]),
        (["small.yaml", "data.directory=corpus"], ["files that `prepare` did not write"]),
        (["small.yaml", "data.directory=model"], ["files that `prepare` did not write"]),
        (["small.yaml", "data.directory=."], ["files that `prepare` did not write"]),
        (["small.yaml", NEW, "data.tokenizer.vocabulary_size=99999"], ["too large", "largest possible value"]),
        (["small.yaml", NEW, "data.tokenizer.vocabulary_size=9"], ["smallest possible value"]),
        (["small.yaml", NEW, "data.filters.max_length=1"], ["200 by max_length"]),
        (["small.yaml", "data.train=[]"], ["data.train", "at least 1"]),
        (["broken.yaml"], ["broken.yaml:2", "invalid YAML"]),
        (["nowhere.yaml"], ["nowhere.yaml"]),
    ],
)
def test_bad_places_and_settings(
    refused: Callable[..., str], workspace: Path, arguments: list[str], messages: list[str]
) -> None:
    (workspace / "broken.yaml").write_bytes(b"name: [a\n")
    shown = refused("prepare", *arguments)
    for message in messages:
        assert message in shown


def test_characters_inside_a_line_are_data(command: Run, workspace: Path) -> None:
    text = english(workspace).replace(b" the ", " \u2028t\rh\x00e\x0c\t\x85 ".encode())
    (workspace / "corpus/train.en").write_bytes(text.rstrip(b"\n"))  # a last line without a line end counts
    result = command("prepare", "small.yaml", NEW)
    assert result.code == 0 and "demo: 200 of 200 pairs kept" in result.lines[0]
    told, changed, *examples = result.err.splitlines()
    cause = "the character NUL (U+0000), which SentencePiece cannot keep: remove it; mostly '\\x00'"
    assert told.endswith(f"source tokens are unknown: {cause}")
    assert "source lines do not come back" in changed and len(examples) == 3
    assert "\\u2028t\\rh\\x00e\\x0c" in examples[0]


def test_windows_line_ends_are_told_of_once(command: Run, workspace: Path) -> None:
    (workspace / "corpus/train.en").write_bytes(english(workspace).replace(b"\n", b"\r\n"))
    result = command("prepare", "small.yaml", NEW)
    assert result.code == 0 and result.err.count("warning: ") == 1
    assert "corpus/train.en: 200 lines end in \\r" in result.err


def test_the_same_text_twice(refused: Callable[..., str], workspace: Path) -> None:
    text = (workspace / "small.yaml").read_bytes()
    corpus = b"{name: demo, source: corpus/train.en, target: corpus/train.de}"
    twin = corpus.replace(b"demo", b"twin")
    (workspace / "twins.yaml").write_bytes(text.replace(corpus, corpus + b", " + twin))
    shown = refused("prepare", "twins.yaml", NEW)
    assert "the corpora 'demo' and 'twin' contain the same text" in shown and "`weight: 2`" in shown


def test_blank_validation_text(refused: Callable[..., str], workspace: Path) -> None:
    (workspace / "corpus/dev.de").write_bytes(b" \n" * 20)
    assert "corpus/dev.de: every line of the validation text is blank" in refused("prepare", "small.yaml", NEW)
