"""Models of several languages, from the vocabularies that they are given to every command that reads text."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.tensors import load_tensors
from tests.commands.support import Run

Refused = Callable[..., str]

LANGUAGES = {"en_XX": 20, "de_DE": 21, "fr_XX": 22}
FRAMES = Frames(LANGUAGES, source_prefix=["source"], target_prefix=["target"])
SMALL = ("training.validation.metric=loss", "data.directory=several-data", "data.tokenizer.from_model=several")


@pytest.fixture
def several(command: Run, workspace: Path) -> Path:
    """A model of three languages; its first recipe translates from English to German."""
    shutil.copytree(workspace / "prepared" / "tokenizers", workspace / "several" / "tokenizers")
    FRAMES.save(workspace / "several" / "tokenizers" / "frames.json")
    languages = ("decoding.source_language=en_XX", "decoding.target_language=de_DE")
    assert command("prepare", "small.yaml", *SMALL).code == 0
    for name, updates in (("half", 4), ("half", 8), ("whole", 8)):
        limits = (f"directory={name}", f"training.max_updates={updates}")
        assert command("train", "small.yaml", *SMALL, *languages, *limits).code == 0
    return workspace / "half"


def test_languages_from_training_to_decoding(command: Run, refused: Refused, several: Path, workspace: Path) -> None:
    # A run that was interrupted ends with the same weights.
    found, expected = (load_tensors(workspace / name / "weights.safetensors", hint="") for name in ("half", "whole"))
    assert all(found[name].equal(expected[name]) for name in expected)
    text = (workspace / "corpus" / "dev.en").read_bytes()
    (workspace / "few.en").write_bytes(b"".join(text.splitlines(keepends=True)[:4]))
    german = command("decode", several, "-i", "few.en").out
    scored = ("decode", several, "-i", "few.en", "--json")  # an untrained model, whose scores show what it reads
    as_german = command(*scored).out
    assert command(*scored, "--target-language", "de_DE").out == as_german
    assert command(*scored, "--target-language", "fr_XX").out != as_german
    assert command(*scored, "--source-language", "fr_XX").out != as_german
    (workspace / "few.de").write_bytes(german)
    scores = [
        command("score", "--model", several, "--source", "few.en", "--target", "few.de", *more).out
        for more in ((), ("--target-language", "de_DE"), ("--target-language", "fr_XX"))
    ]
    assert scores[0] == scores[1] != scores[2]
    report = command("analyze", "density", several, "-i", "few.en", "--target-language", "fr_XX")
    assert report.code == 0, report.err
    # A shortlist need not have the languages' tokens.
    short = command("shortlist", several, "few.en", "few.de", "-o", "small", "--first", "2", "--best", "2")
    assert short.code == 0, short.err
    for code in ("de_DE", "fr_XX"):
        assert command(*scored, "--shortlist", "small", "--target-language", code).code == 0
    table = ("depth-table", several, "--source", "few.en", "--reference", "few.de", "--no-speed")
    for number, code in enumerate(("de_DE", "fr_XX", "de_DE")):
        result = command(*table, "--target-language", code, "-o", f"table-{number}")
        assert result.code == 0, result.err
    cut = command(
        "slice",
        several,
        "cut",
        "--vocabulary",
        "few.en",
        "--vocabulary",
        "few.de",
        "--keep-language",
        "en_XX",
        "--keep-language",
        "de_DE",
    )
    assert cut.code == 0, cut.err
    assert command("decode", "cut", "-i", "few.en").code == 0
    assert "does not have the language 'fr_XX'" in refused(
        "decode", "cut", "-i", "few.en", "--target-language", "fr_XX"
    )
    assert "and de_DE is left out" in refused(
        "slice", several, "cut2", "--vocabulary", "few.en", "--keep-language", "en_XX"
    )
    assert "'xx'" in refused("depth-table", several, *table[2:], "--target-language", "xx", "-o", "table-x")
    selected = ("select-depth", several, "-s", "few.en", "-r", "few.de", "--target-language", "xx")
    assert "'xx'" in refused(*selected)
    assert "'xx'" in refused("decode", several, "--target-language", "xx")
    assert "Take one of: de_DE" in refused("decode", several, "--target-language", "de")
    assert "no languages to choose from" in refused("decode", "model", "--target-language", "de")


def test_a_language_that_is_missing_is_asked_for(refused: Refused, workspace: Path, command: Run) -> None:
    shutil.copytree(workspace / "prepared" / "tokenizers", workspace / "several" / "tokenizers")
    FRAMES.save(workspace / "several" / "tokenizers" / "frames.json")
    assert command("prepare", "small.yaml", *SMALL).code == 0
    assert "--source-language" in refused("train", "small.yaml", *SMALL, "directory=other")
    assert "there are no tokenizers" in refused(
        "prepare", "small.yaml", "data.directory=x", "data.tokenizer.from_model=corpus"
    )
