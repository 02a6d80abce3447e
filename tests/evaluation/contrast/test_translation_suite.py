"""Word-sense pairs out of a translation suite, and what is left out because a model has seen it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.evaluation.contrast.suites import open_suite
from sparsenmt.evaluation.contrast.training_text import exclude_training
from sparsenmt.evaluation.contrast.translation_suite import swap
from tests.evaluation.contrast.support import KEY, REFERENCE, TEXT, write, write_translation_suite


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_pairs(tmp_path: Path, suffix: str) -> None:
    suite = open_suite(write_translation_suite(tmp_path, suffix))
    assert (suite.languages, suite.sources) == (("de", "en"), tuple(TEXT))
    first, second = suite.items
    assert first.contrastive == (
        "The lock and the castle-wall are old.",
        "The locks and the castle-wall are old.",
    )
    assert second.contrastive == ("CASTLE are dear.", "CASTLES are dear.", "PALACE are dear.")
    assert (first.word, first.sense, first.origin, first.domain) == ("schloss", "castle castles palace", "tales", "out")
    assert (second.sentence, second.domain, second.correct) == (1, "in", REFERENCE[1])
    assert suite.notes == ("1 of 3 lines are left out: the reference has no word of the right sense",)


def test_without_domains(tmp_path: Path) -> None:
    key = write_translation_suite(tmp_path)
    (tmp_path / "de-en.domain.txt").unlink()
    assert {item.domain for item in open_suite(key).items} == {None}


@pytest.mark.parametrize(
    ("reference", "right", "wrong", "expected"),
    [
        ("Locks are dear.", ["lock", "locks"], ["castle"], ["Castle are dear."]),
        ("the Castle castle", ["castle"], ["lock"], ["the Lock castle"]),
        ("the railroad's end", ["railroad"], ["course"], ["the course's end"]),
        ("half-hours, hour", ["hour", "half-hour"], ["lesson"], ["half-hours, lesson"]),
        ("a half-hour", ["hour", "half-hour"], ["lesson"], ["a lesson"]),
        ("d.n.a. tests", ["d.n.a."], ["letter"], ["letter tests"]),
        ("dxnxa tests", ["d.n.a."], ["letter"], []),
        ("an unlocked door", ["lock"], ["castle"], []),
        ("a lock", ["lock"], ["Lock", "castle", "castle"], ["a castle"]),
        ("I am", ["i"], ["he"], ["He am"]),
    ],
)
def test_swap(reference: str, right: list[str], wrong: list[str], expected: list[str]) -> None:
    assert list(swap(reference, right, wrong)) == expected


@pytest.mark.parametrize("line", ["1\ttales\tschloss\tcastle", "1\ttales\tschloss\t\tlock", ""])
def test_a_bad_line_of_the_key(tmp_path: Path, line: str) -> None:
    key = write_translation_suite(tmp_path)
    write(key, [KEY[0], line, KEY[2]])
    with pytest.raises(UserError, match=r"de-en.key.txt, line 2: \d columns, or an empty one"):
        open_suite(key)


def test_a_bad_line_of_the_domains(tmp_path: Path) -> None:
    key = write_translation_suite(tmp_path)
    write(tmp_path / "de-en.domain.txt", ["schloss\tlock"])
    with pytest.raises(UserError, match=r"de-en.domain.txt, line 1: 2 columns"):
        open_suite(key)


def test_parts_that_are_missing_or_not_aligned(tmp_path: Path) -> None:
    key = write_translation_suite(tmp_path)
    write(tmp_path / "de-en.ref.txt", REFERENCE[:2])
    with pytest.raises(UserError, match=r"key.txt has 3 but .*text.txt has 3 but .*ref.txt has 2"):
        open_suite(key)
    (tmp_path / "de-en.ref.txt").unlink()
    with pytest.raises(UserError, match=r"de-en.ref.txt: the suite has no such file"):
        open_suite(key)


def test_what_stands_in_the_training_text_is_left_out_and_counted(tmp_path: Path) -> None:
    suite = open_suite(write_translation_suite(tmp_path))
    lines = ["Something else.", f"  {TEXT[0].upper()} "]
    for side, left in (("source", 1), ("either", 1), ("target", 2)):
        found = exclude_training(suite, [(side, lines)])  # type: ignore[list-item]
        assert len(found.items) == left
    both = exclude_training(suite, [("source", [TEXT[0]]), ("target", [REFERENCE[0], "locks  ARE dear."])])
    assert not both.items
    assert both.notes[-1] == (
        "2 of 2 items are in the training text and are left out: 1 by their source, 2 by their reference"
    )
    assert both.sources == suite.sources  # tags given beside them stay aligned


def test_composed_and_decomposed_letters_are_the_same(tmp_path: Path) -> None:
    suite = open_suite(write_translation_suite(tmp_path))
    assert len(exclude_training(suite, [("source", ["Schlo\u0308sser sind teuer."])]).items) == 1
