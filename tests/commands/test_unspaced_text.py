"""Commands on text without spaces between words: Japanese, with a very small model of characters."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.cli import run
from sparsenmt.data.tagging import taggers
from tests.commands.support import Run

WORDS = [
    [who, "は", *where, what, "を", *done, "。"]
    for who in ("私", "彼女", "先生")
    for where in ([], ["駅", "で"], ["図書館", "で"])
    for what in ("本", "新聞", "手紙")
    for done in (["読", "んだ"], ["書", "きました"])
]
LINES = ["".join(words) for words in WORDS]
RULE = "model.memory=[{name: group, at: output}]"
DATA = ["train.0.source=ja", "train.0.target=en", "dev.source=ja", "dev.target=en", "source_language=ja"]


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


@pytest.fixture(scope="module")
def japanese(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small.yaml, the model spelled/, the text ``ja`` and its words as ``tags``."""
    folder = tmp_path_factory.mktemp("japanese")
    shutil.copy(trained / "small.yaml", folder)
    write(folder / "ja", LINES)
    write(folder / "en", ["a person reads or writes ."] * len(LINES))
    write(folder / "tags", [" ".join(f"{word}_NN" for word in words) for words in WORDS])
    options = [RULE, *(f"data.{each}" for each in DATA), "data.tokenizer.kind=char", "directory=spelled"]
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run(["prepare", "small.yaml", *options]) == 0
        assert run(["train", "small.yaml", *options, "training.max_updates=1"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(japanese: Path, workspace: Path) -> Path:
    """The working directory of `command`, with these files and the model."""
    shutil.rmtree(workspace / "prepared")
    return Path(shutil.copytree(japanese, workspace, dirs_exist_ok=True))


def result(command: Run, place: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The report as JSON, and what is printed."""
    found = command("analyze", *arguments, "--json", "r.json")
    assert found.code == 0, found.err
    loaded: dict[str, Any] = json.loads((place / "r.json").read_bytes())
    return loaded, found.out.decode()


def test_places_are_those_in_the_sentence(command: Run, place: Path) -> None:
    report, shown = result(command, place, "position", "spelled", "-i", "ja", "--plot", "r.png")
    records = {record["place"]: record for record in report["tables"]["position"]}
    assert {record["unit"] for record in records.values()} == {"sentence"}
    assert records["punctuation"]["positions"] == len(LINES)
    assert sum(records[place]["positions"] for place in records if " to " in place) == len("".join(LINES)) - len(LINES)
    assert report["settings"]["words"] == "unknown"
    assert "place in the sentence" in shown and "no spaces between words" in shown and "--words" in shown


def test_given_tags_and_segmenters_know_the_words(command: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Segmenter:
        version, tagset = "1", "ud"

        def __init__(self, language: str) -> None:
            assert language == "ja"

        def tokenize(self, line: str) -> list[str]:
            return WORDS[LINES.index(line)]

    monkeypatch.setitem(taggers._TAGGERS, "stanza", Segmenter)
    for options in (["--tags", "tags"], ["--words", "stanza"]):
        report, shown = result(command, place, "position", "spelled", "-i", "ja", *options)
        records = {record["place"]: record for record in report["tables"]["position"]}
        single = sum(len(word) == 1 and word != "。" for words in WORDS for word in words)
        assert records["alone in its word"]["positions"] == single
        assert records["0.0 to 0.1"]["positions"] == sum(len(word) > 1 for words in WORDS for word in words)
        assert {record["unit"] for record in records.values()} == {"characters"}
        assert "words: those of" in shown and "no spaces" not in shown
    assert report["settings"]["words"] == "stanza"


def test_what_needs_words_says_that_there_are_none(command: Run, place: Path) -> None:
    report, shown = result(command, place, "roles", "spelled", "-i", "ja")
    measured = {record["role"]: record["measured_on"] for record in report["tables"]["roles"]}
    assert measured["merging"] == 0 and measured["previous"] > 0
    assert "merging is not measured" in shown and "no spaces between words" in shown
    known, _ = result(command, place, "roles", "spelled", "-i", "ja", "--tags", "tags")
    assert {r["role"]: r["measured_on"] for r in known["tables"]["roles"]}["merging"] == sum(map(len, WORDS))
    mass = ["attention-mass", "spelled", "-i", "ja", "--unit", "word", "--beam-size", "1", "--limit", "2"]
    report, shown = result(command, place, *mass)
    assert report["settings"]["words"] == "unknown" and "mostly a whole sentence" in shown
    report, shown = result(command, place, *mass, "--tags", "tags")
    assert report["tables"]["summary"][0]["words"] == sum(len(words) + 1 for words in WORDS[:2])
    assert "no spaces" not in shown


def test_lengths_are_characters(command: Run, place: Path) -> None:
    write(place / "other", [line.replace("は", "が") for line in LINES])
    shared = ["by-length", "other", "-r", "ja", "--metric", "chrf", "--edges", "9"]
    report, shown = result(command, place, *shared)
    assert report["settings"]["length"] == "reference-characters"
    counts = {record["length"]: record["sentences"] for record in report["tables"]["by-length"]}
    assert counts["up to 9"] == sum(len(line) <= 9 for line in LINES) < counts["all"] == len(LINES)
    assert "length: characters of the reference" in shown
    report, shown = result(command, place, *shared, "--length", "reference-words")
    assert report["settings"]["length"] == "reference-words" and "no spaces between words" in shown
    write(place / "english", ["two words", "and three more"])
    assert result(command, place, "by-length", "english", "-r", "english")[0]["settings"]["length"] == "reference-words"


def test_a_tagger_of_words_between_spaces_is_refused(place: Path, refused: Callable[..., str]) -> None:
    pytest.importorskip("HanTa")
    shared = ["analyze", "pos", "spelled", "-i", "ja"]
    assert "does not cover" in refused(*shared) and "no spaces between words" in refused(*shared, "--language", "en")


def test_methods_that_decide_by_words_are_warned_of(command: Run, place: Path) -> None:
    data = [f"data.{each}" for each in DATA]
    kind = "data.tokenizer.kind=char"
    by_words = "model.memory=[{name: group, at: output, unit: words}]"
    warned = command("prepare", "small.yaml", by_words, *data, kind)
    assert warned.code == 0 and "warning: model.memory.0 (group): words" in warned.err
    assert "warning" not in command("prepare", "small.yaml", RULE, *data, kind).err
    english = ["data.train.0.source=en", "data.dev.source=en"]
    assert "warning" not in command("prepare", "small.yaml", by_words, *data, kind, *english).err
    command("prepare", "small.yaml", by_words, *data, kind)
    trained = command("train", "small.yaml", by_words, *data, kind, "training.max_updates=1", "directory=other")
    assert trained.code == 0 and "warning: model.memory.0 (group): words" in trained.err
    words = command("prepare", "small.yaml", *data, "data.tokenizer.kind=word")
    assert "warning: data.tokenizer.kind: words" in words.err and "the source" in words.err
