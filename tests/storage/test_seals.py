"""What was written is known again: sealed objects and texts, listings of hashes, and what differs between settings."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sparsenmt.kept_work import changed_values, describe_changes
from sparsenmt.storage.files import (
    DamagedFileError,
    read_json,
    read_sealed,
    seal_text,
    sha256_file,
    sha256_text,
    unseal_text,
    write_sealed,
)
from sparsenmt.storage.records import check_file_entries, file_entries, file_entry, list_files


def flips(content: bytes) -> list[bytes]:
    """The content with one bit flipped: all places, a bit of each."""
    draw = random.Random(1)
    return [
        content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
        for place in range(len(content))
    ]


VALUE = {"format": 2, "files": {"a/ü": {"bytes": 17, "sha256": "ab"}}, "none": None, "rate": 0.1}


def test_a_sealed_object_is_what_was_written(tmp_path: Path) -> None:
    write_sealed(tmp_path / "file", VALUE)
    assert read_sealed(tmp_path / "file") == VALUE
    assert read_json(tmp_path / "file") | VALUE == read_json(tmp_path / "file"), "other programs can read it"
    write_sealed(tmp_path / "file", {})
    assert read_sealed(tmp_path / "file") == {}


def test_every_flipped_bit_of_a_sealed_object_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_sealed(path, VALUE)
    content = path.read_bytes()
    for other in (*flips(content), *(content[:end] for end in range(len(content) - 1)), content + b"x"):
        path.write_bytes(other)
        with pytest.raises(DamagedFileError) as caught:
            read_sealed(path)
        assert caught.value.where == str(path) and caught.value.hint


@pytest.mark.parametrize("value", [None, [], [1], "text", 3, {}, {"seal": None}, {"seal": 1, "a": 2}])
def test_what_has_no_seal(tmp_path: Path, value: object) -> None:
    (tmp_path / "file").write_bytes(json.dumps(value).encode())
    with pytest.raises(DamagedFileError):
        read_sealed(tmp_path / "file")
    with pytest.raises(DamagedFileError, match="no such file"):
        read_sealed(tmp_path / "missing")


@pytest.mark.parametrize("text", ["a: 1\n", "", "no line end", "# sha256 of the lines above: 0\n", "ü\r\n\u2028\n"])
def test_a_sealed_text_is_what_was_written(text: str) -> None:
    sealed = seal_text(text)
    assert unseal_text(sealed) == text
    assert unseal_text(seal_text(sealed)) == sealed
    assert unseal_text(text) is None


def test_every_changed_character_of_a_sealed_text_is_found() -> None:
    sealed = seal_text("model: {dimension: 64}\nname: x\n")
    for place in range(len(sealed)):
        for other in ("#", "0", "\n", ""):
            if other != sealed[place]:
                assert unseal_text(sealed[:place] + other + sealed[place + 1 :]) is None
        assert unseal_text(sealed[:place]) is None
    for more in ("\n", " ", "name: y\n"):
        assert unseal_text(sealed + more) is None


def make_files(directory: Path) -> None:
    (directory / "sub").mkdir(parents=True)
    for name, content in (("a", b"text"), ("sub/b", b""), ("sub/c", b"x" * 3_000_000), (".hidden", b"h")):
        (directory / name).write_bytes(content)


def test_a_listing_holds_every_file(tmp_path: Path) -> None:
    make_files(tmp_path / "d")
    advanced: list[int] = []
    found = {name: file_entry(path, advanced.append) for name, path in list_files(tmp_path / "d").items()}
    assert found == file_entries(tmp_path / "d")
    assert {name: entry["bytes"] for name, entry in found.items()} == {"a": 4, "sub/b": 0, "sub/c": 3_000_000}
    assert found["a"]["sha256"] == sha256_text("text") == sha256_file(tmp_path / "d/a")
    assert sum(advanced) == 3_000_004
    check_file_entries(tmp_path / "d", found, hint="x")


def test_a_listing_finds_what_changed(tmp_path: Path) -> None:
    make_files(tmp_path)
    recorded = file_entries(tmp_path)
    for name in recorded:
        path = tmp_path / name
        content = path.read_bytes()
        others: list[bytes | None] = [None, content + b"x", content[:-1] if content else b"y"]
        if content:
            others += [b"y" + content[1:], content[:-1] + b"y"]
        for other in others:
            path.unlink(missing_ok=True)
            if other is not None:
                path.write_bytes(other)
            with pytest.raises(DamagedFileError) as caught:
                check_file_entries(tmp_path, recorded, hint="Mend it.")
            assert (caught.value.where, caught.value.hint) == (str(path), "Mend it.")
        path.write_bytes(content)
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    with pytest.raises(DamagedFileError, match="missing"):
        check_file_entries(tmp_path, recorded, hint="x")


# --- differences -------------------------------------------------------------------------------------------------


def test_differences_name_the_key() -> None:
    old = {"a": 1, "b": {"c": [1, 2], "d": [1]}, "e": "x"}
    new = {"a": 1, "b": {"c": [1, 3], "d": [1, 2]}, "f": None}
    assert changed_values(old, new) == [("b.c[1]", 2, 3), ("b.d", [1], [1, 2]), ("e", "x", None)]
    assert describe_changes(old, new) == [
        "b.c[1] is 3 instead of 2",
        "b.d is [1, 2] instead of [1]",
        'e is null instead of "x"',
    ]
    assert changed_values(old, old) == []
