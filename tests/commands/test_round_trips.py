"""Normalisation that changes the text for good: `prepare` counts the lines, and languages with joiners keep them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.data.prepared_data import read_manifest
from sparsenmt.data.text import read_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from tests.commands.support import Run

PERSIAN = ["می\u200cروم", "کتاب\u200cها را", "خانه و من"]
NEW = "data.directory=new"


@pytest.fixture
def persian(workspace: Path) -> Path:
    """A corpus whose target has non-joiners in two of three lines, and a recipe that names no language."""
    for name, lines in (("train", 200), ("dev", 20)):
        text = "".join(f"{PERSIAN[number % 3]}\n" for number in range(lines))
        (workspace / "corpus" / f"{name}.de").write_text(text, encoding="utf-8")
    return workspace


def test_lines_that_do_not_come_back_are_counted_and_three_are_shown(command: Run, persian: Path) -> None:
    told = command("prepare", "small.yaml", NEW, "data.tokenizer.vocabulary_size=90").err.splitlines()
    key = "data.tokenizer.normalization (nmt_nfkc)"
    assert told[0].startswith(
        f"warning: 134 of 200 target lines do not come back from the tokenizer as they were: {key}"
    )
    assert told[1].endswith(r"train.de, line 1: 'می\u200cروم' becomes 'می روم'") and len(told) == 4
    again = command("prepare", "small.yaml", NEW, "data.tokenizer.vocabulary_size=90")
    assert again.err == "" and "up to date" in again.lines[-1]


@pytest.mark.parametrize("drawn", ["", ", lines_seed: 1"])
def test_lines_that_are_not_used_are_not_looked_at(command: Run, persian: Path, drawn: str) -> None:
    corpus = f"data.train=[{{source: corpus/train.en, target: corpus/train.de, lines: 30{drawn}}}]"
    told = command("prepare", "small.yaml", NEW, corpus, "data.tokenizer.vocabulary_size=90").err
    assert " of 30 target lines do not come back" in told


def test_lines_of_a_side_that_is_only_read_are_a_note(command: Run, persian: Path) -> None:
    sides = "data.train=[{source: corpus/train.de, target: corpus/train.en}]", "data.dev.source=corpus/dev.de"
    shown = command(
        "prepare", "small.yaml", NEW, "data.tokenizer.vocabulary_size=90", *sides, "data.dev.target=corpus/dev.en"
    )
    assert shown.err.startswith("134 of 200 source lines do not come back") and "warning" not in shown.err


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("code", ["fa", "pes_Arab", "ur-PK"])
def test_languages_with_joiners_keep_them(command: Run, persian: Path, code: str, side: str) -> None:
    settings = (f"data.{side}_language={code}", "data.tokenizer.vocabulary_size=90")
    shown = command("prepare", "small.yaml", NEW, *settings)
    assert shown.code == 0 and "come back" not in shown.err
    assert read_manifest(Path("new"))["settings"]["tokenizer"]["normalization"] == "nfkc"
    tokenizer = Tokenizers.load(persian / "new" / "tokenizers").target
    for line in read_lines("corpus/train.de"):
        assert tokenizer.decode(tokenizer.encode(line)) == line
    given = command("prepare", "small.yaml", NEW, *settings, "data.tokenizer.normalization=nmt_nfkc")
    assert "134 of 200 target lines" in given.err


def test_data_of_earlier_versions_and_their_runs_go_on(command: Run, persian: Path) -> None:
    small = ("data.tokenizer.vocabulary_size=90", NEW, "directory=old", "training.max_updates=8")
    earlier = (
        *small,
        "data.target_language=fa",
        "data.tokenizer.normalization=nmt_nfkc",
        "training.validation.metric=loss",
    )
    assert command("prepare", "small.yaml", *earlier).code == 0
    assert command("train", "small.yaml", *earlier).code == 0
    resumed = command("train", "small.yaml", *earlier[:3], "training.max_updates=12", *earlier[4:5], earlier[-1])
    assert resumed.code == 0, resumed.err
    assert resumed.err.count("prepared with data.tokenizer.normalization nmt_nfkc") == 1 and "update 12" in resumed.err
    other = command(
        "train", "small.yaml", *small, "data.tokenizer.normalization=nfkc", "training.validation.metric=loss"
    )
    assert other.code == 2 and 'normalization is "nfkc" instead of "nmt_nfkc"' in other.err


@pytest.mark.parametrize("kind", ["char", "word", "byte", "unigram"])
def test_other_tokenizers(command: Run, persian: Path, kind: str) -> None:
    text = (persian / "corpus" / "train.en").read_bytes().replace(b" the ", " the\u2581 ".encode())
    (persian / "corpus" / "train.en").write_bytes(text)
    size = f"data.tokenizer.vocabulary_size={260 if kind == 'byte' else 1000}"
    rule = "data.tokenizer.normalization=identity"
    shown = command("prepare", "small.yaml", NEW, f"data.tokenizer.kind={kind}", rule, size)
    assert shown.code == 0 and "target lines" not in shown.err
    changes = kind in ("char", "unigram")
    assert ("come back from the tokenizer as they were: U+2581 stands for a space" in shown.err) == changes, shown.err
