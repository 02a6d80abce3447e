"""Every format of suites, found out and read; what is not sound is refused with file, line and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.errors import UserError
from sparsenmt.evaluation.contrast.entries import as_entries, list_elements, read_entries
from sparsenmt.evaluation.contrast.line_files import read_line_files
from sparsenmt.evaluation.contrast.suites import open_suite
from tests.evaluation.contrast.support import (
    CORRECT,
    LINGEVAL,
    SENSES,
    SOURCES,
    WRONG,
    write,
    write_json,
    write_set,
    write_translation_suite,
)


def test_line_files(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}", lines) for i, lines in enumerate([SOURCES, CORRECT, WRONG, WRONG[::-1]])]
    suite = read_line_files(files[0], files[1], files[2:])
    assert suite.sources == tuple(SOURCES)
    assert [(item.sentence, item.correct, item.contrastive) for item in suite.items] == [
        (i, CORRECT[i], (WRONG[i], WRONG[-1 - i])) for i in range(3)
    ]
    assert suite.items[1].place == f"{files[0]}, line 2"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_folders(tmp_path: Path, suffix: str) -> None:
    write_set(tmp_path / "all" / "agreement.human", suffix=suffix)
    write_set(tmp_path / "all" / "polarity.mt", slice(2), suffix)
    suite = open_suite(tmp_path / "all")
    assert (suite.format, suite.languages, len(suite.sources)) == ("distil-lingeval", ("en", "de"), 5)
    assert [item.type for item in suite.items] == ["agreement.human"] * 3 + ["polarity.mt"] * 2
    assert [suite.sources[item.sentence] for item in suite.items] == [*SOURCES, *SOURCES[:2]]
    assert suite.items[4].correct == CORRECT[1] and suite.items[4].contrastive == (WRONG[1],)
    alone = open_suite(tmp_path / "all" / "polarity.mt")
    assert {item.type for item in alone.items} == {"polarity.mt"} and len(alone.items) == 2


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_error_of_lingeval97_is_a_decision(tmp_path: Path, suffix: str) -> None:
    suite = open_suite(write_json(tmp_path / f"suite.json{suffix}", LINGEVAL))
    assert suite.format == "lingeval97"
    assert [(item.type, item.distance, item.frequency, item.origin) for item in suite.items] == [
        ("agreement", 3, 40, "invented2020"),
        ("polarity", None, None, "invented2020"),
        ("agreement", 16, 2, "invented2021"),
    ]
    assert [item.sentence for item in suite.items] == [0, 0, 1]
    assert suite.notes == ("1 of 3 entries have no errors, and are left out",)


def test_an_entry_with_an_ambiguous_word_is_one_decision(tmp_path: Path) -> None:
    suite = open_suite(write_json(tmp_path / "de-en.mucow.scoring.json", SENSES))
    assert (suite.format, suite.languages) == ("word-sense", ("de", "en"))
    first, second = suite.items
    assert first.contrastive == (WRONG[2], "Der Ballen war lang.")
    assert (first.word, first.sense, first.origin, first.type) == ("ball", "Tanz", "tales", "word_sense")
    assert second.contrastive == (WRONG[0],)
    other = open_suite(tmp_path / "de-en.mucow.scoring.json", "lingeval97")
    assert [item.contrastive for item in other.items] == [(text,) for text in [*first.contrastive, WRONG[0]]]


def test_frequencies_of_contrawsd(tmp_path: Path) -> None:
    entry = {**SENSES[0], "frequency of sense/ambig word in wmt16": "120/4500"}
    (item,) = open_suite(write_json(tmp_path / "de-en.json", [entry])).items
    assert item.frequency == 120
    entry["frequency of sense/ambig word in wmt16"] = "often"
    with pytest.raises(UserError, match=r"line 2: entry 1\.frequency of sense.*two integers"):
        open_suite(write_json(tmp_path / "de-en.json", [entry]))


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    for path in (write_json(tmp_path / "a.json", SENSES), write_json(tmp_path / "b.json", LINGEVAL)):
        suite = open_suite(path)
        again = read_entries(write_json(tmp_path / "again.json", as_entries(suite)))
        for old, new in zip(suite.items, again.items, strict=True):
            assert suite.sources[old.sentence] == again.sources[new.sentence]
            for name in ("correct", "contrastive", "type", "distance", "frequency", "origin", "word", "sense"):
                assert getattr(old, name) == getattr(new, name), name


def test_the_lines_of_elements() -> None:
    text = ' \n[ {"a": 1},\n\n {"b":\n 2},\n 3 ]\n'
    assert list(list_elements(text, "x")) == [(2, {"a": 1}), (4, {"b": 2}), (6, 3)]
    assert list(list_elements("[]", "x")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "suite.json, line 1: the file is not a JSON list"),
        ('{"1": {}}', "line 1: the file is not a JSON list"),
        ('[\n{"source": "a",\n "reference" "b"}]', "line 3: this is not JSON: Expecting ':' delimiter"),
        ('[\n{"source": "a"', "line 2: this is not JSON"),
        ('[{"source": "a", "reference": "b", "errors": []}\n', "line 2: this is not JSON: ',' or ']' is expected"),
        ("[]\n\n{}", "line 3: this is not JSON: the list does not end here"),
        ("[" * 100_000, "line 1: this JSON cannot be read"),
        ("[" + "1" * 5000 + "]", "line 1: this JSON cannot be read"),
        ("[]", "the suite has no items"),
        ("[\n 7]", "line 2: entry 1: this must be an object"),
    ],
)
def test_bad_json(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "suite.json", text.split("\n"))
    with pytest.raises(UserError) as caught:
        open_suite(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": None}, "line 19: entry 2.source: the key is missing"),
        ({"reference": 7}, "line 19: entry 2.reference: this must be a text"),
        ({"source": "\ud800"}, "line 19: entry 2.source: this is not valid Unicode"),
        ({"errors": None}, "line 19: entry 2.errors: this must be a list"),
        ({"errors": [3]}, "line 19: entry 2.errors[0]: this must be an object"),
        ({"errors": [{"type": "x"}]}, "line 19: entry 2.errors[0].contrastive: the key is missing"),
        ({"errors": [{"contrastive": "x"}]}, "line 19: entry 2.errors[0].type: the key is missing"),
        (
            {"errors": [{"type": "x", "contrastive": "y", "distance": "far"}]},
            "line 19: entry 2.errors[0].distance: this must be an integer",
        ),
        (
            {"errors": [{"type": "x", "contrastive": "y", "frequency": -1}]},
            "line 19: entry 2.errors[0].frequency: this must be an integer",
        ),
    ],
)
def test_a_bad_entry_is_named_by_line_and_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    value = [LINGEVAL[0], {**LINGEVAL[1], **change}]
    path = write(tmp_path / "suite.json", json.dumps(value, indent=1).split("\n"))  # surrogates as escapes
    with pytest.raises(UserError) as caught:
        open_suite(path)
    assert str(caught.value).startswith(f"{path}, {message}")


def test_missing_and_unaligned_files(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set")
    (folder / "tgt.incorrect.de").unlink()
    with pytest.raises(UserError, match=r"set: there is no tgt.incorrect.<language>"):
        open_suite(folder)
    write(folder / "tgt.incorrect.de", WRONG[:2])
    with pytest.raises(UserError, match=r"src.en has 3 but .*tgt.correct.de has 3 but .*tgt.incorrect.de has 2"):
        open_suite(folder)
    write(folder / "tgt.incorrect.nl", WRONG)
    with pytest.raises(UserError, match=r"there are 2 files tgt.incorrect"):
        open_suite(folder)


@pytest.mark.parametrize("layout", [None, "distil-lingeval", "lingeval97", "word-sense", "mucow-translation"])
def test_what_is_not_there(tmp_path: Path, layout: str | None) -> None:
    with pytest.raises(UserError, match=r"there is no|no such file"):
        open_suite(tmp_path / "absent", layout)


def test_what_is_not_recognised(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no test suite is recognised in this folder"):
        open_suite(tmp_path)
    with pytest.raises(UserError, match="the format of the suite is not recognised"):
        open_suite(write(tmp_path / "x.txt", SOURCES))
    with pytest.raises(UserError, match=r"there is no src.<language> in the folder"):
        open_suite(tmp_path, "distil-lingeval")


def test_types_and_origins_are_chosen(tmp_path: Path) -> None:
    suite = open_suite(write_json(tmp_path / "suite.json", LINGEVAL))
    assert [item.distance for item in suite.select(["agreement"], []).items] == [3, 16]
    assert [item.type for item in suite.select(["agreement", "polarity"], ["invented2020"]).items] == [
        "agreement",
        "polarity",
    ]
    with pytest.raises(UserError, match=r"--type: the suite has no 'agreements'(?s:.*)There are: agreement, polarity"):
        suite.select(["agreements"], [])
    with pytest.raises(UserError, match=r"--origin: the suite has no 'x'"):
        suite.select([], ["x"])
    folder = open_suite(write_set(tmp_path / "set"))
    with pytest.raises(UserError, match="--origin: the items of the suite have no origin"):
        folder.select([], ["x"])


def test_the_folder_of_a_translation_suite_is_found(tmp_path: Path) -> None:
    key = write_translation_suite(tmp_path)
    for path in (key, tmp_path, tmp_path / "de-en"):
        assert open_suite(path).format == "mucow-translation"
    write(tmp_path / "fi-en.key.txt", [])
    with pytest.raises(UserError, match="no test suite is recognised in this folder"):
        open_suite(tmp_path)
