"""Kept work is taken up if the same is asked for: results, differences, damage, and records of earlier versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.errors import UserError
from sparsenmt.kept_work import KeptWork, Stages, joined, request_digest
from sparsenmt.storage.files import DamagedFileError, read_sealed, write_sealed
from sparsenmt.storage.records import file_entry

ASKED: dict[str, Any] = {"model": "0" * 64, "decoding": {"beam_size": 4, "alphas": (1, 2)}, "text": None}


@dataclass(frozen=True)
class Lines:
    lines: list[str]


def kept(path: Path, asked: dict[str, Any] = ASKED, **options: Any) -> KeptWork[Lines]:
    return KeptWork(path, asked, Lines, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    kept(tmp_path / "kept.json").write(lines=["a"])
    return tmp_path / "kept.json"


def test_the_same_request_finds_its_results(path: Path) -> None:
    assert kept(path).read() == (Lines(["a"]), "") and kept(path).find() == Lines(["a"])
    assert read_sealed(path).keys() == {"work", "lines"}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"text": "b"}, 'text is "b" instead of null'),
        ({"model": "1" * 64}, "the model has changed"),
        ({"decoding": {"beam_size": 5, "alphas": [1, 2]}}, "decoding.beam_size is 5 instead of 4"),
        ({"more": 1}, "more is 1 instead of null"),
    ],
)
def test_another_request_learns_what_differs(path: Path, change: dict[str, Any], difference: str) -> None:
    other = kept(path, {**ASKED, **change})
    assert other.read() == (Lines(["a"]), difference) and other.find() is None
    assert request_digest({**ASKED, **change}) != request_digest(ASKED)


def test_many_differences_are_counted() -> None:
    assert joined(["a", "b", "c"]) == "a; b; c" and joined(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"


@pytest.mark.parametrize(
    "record", [{}, {"work": ASKED}, {"work": 1, "lines": ["a"]}, {"work": ASKED, "lines": "a"}, {"lines": ["a"]}]
)
def test_a_record_of_other_types_is_damaged(path: Path, record: dict[str, Any]) -> None:
    write_sealed(path, record)
    with pytest.raises(DamagedFileError, match=r"kept\.json: damaged") as caught:
        kept(path).read(hint="Remove it.")
    assert caught.value.hint == "Remove it." and kept(path).find() is None
    assert kept(path.with_name("missing")).find() is None


def test_a_whole_file_can_be_the_request(tmp_path: Path) -> None:
    asked = {"lines": ["a"], "from": None}
    kept(tmp_path / "kept.json", asked, key=None).write()
    assert read_sealed(tmp_path / "kept.json") == asked
    assert kept(tmp_path / "kept.json", asked, key=None).find() == Lines(["a"])
    assert kept(tmp_path / "kept.json", {**asked, "from": "b"}, key=None).find() is None


def test_a_comparison_may_leave_differences_out(path: Path) -> None:
    def but_the_text(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
        return [(key, old.get(key), new[key]) for key in new if key != "text" and old.get(key) != new[key]]

    assert kept(path, {**ASKED, "text": "b"}, compare=but_the_text).find() == Lines(["a"])
    assert kept(path, {**ASKED, "model": "b"}, compare=but_the_text).find() is None


def test_a_comparison_that_fails_finds_nothing(path: Path) -> None:
    def fail(old: object, new: object) -> list[tuple[str, Any, Any]]:
        raise UserError("it cannot be compared")

    assert kept(path, compare=fail).find() is None


def test_stages_of_an_earlier_version_are_taken_up(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\n")
    stage = {"name": "first", "files": {"text": file_entry(tmp_path / "text")}, "result": [1]}
    write_sealed(tmp_path / ".state.json", {"task": {"format": 1}, "stages": [stage]})
    assert Stages(tmp_path, {"format": 1}, False).run("first", lambda: [2]) == [1]
    assert Stages(tmp_path, {"format": 2}, False).run("first", lambda: [2]) == [2]
    assert not (tmp_path / "text").exists()
