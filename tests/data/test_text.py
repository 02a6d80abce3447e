"""Lines end at \\n and nowhere else; broken files are named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenmt.data.text import read_lines, read_parallel, write_lines
from sparsenmt.errors import UserError

ODD = ["a\u2028b", "c\rd", "e\x00f", "g\x0ch", "i\x85j", "k\u2029l", "", " m ", "n\r", "\ufeffo", "p\x1cq\x0br"]


@pytest.mark.parametrize("packed", [False, True])
def test_only_line_feeds_end_lines(tmp_path: Path, packed: bool) -> None:
    content = "\n".join(ODD).encode() + b"\n"
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert list(read_lines(path)) == ODD


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("text") / "x"
    write_lines(path, lines)
    assert list(read_lines(path)) == lines


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\n", ["a", ""]), (b"\n\nb", ["", "", "b"])],
)
def test_last_line_may_lack_its_end(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    (tmp_path / "x").write_bytes(content)
    assert list(read_lines(tmp_path / "x")) == expected


def test_gzip_is_known_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "plain-name").write_bytes(gzip.compress(b"a\nb\n"))
    assert list(read_lines(tmp_path / "plain-name")) == ["a", "b"]
    (tmp_path / "two.gz").write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    assert list(read_lines(tmp_path / "two.gz")) == ["a", "b"]


def test_bad_files_are_named(tmp_path: Path) -> None:
    def error(name: str, content: bytes | None) -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError) as caught:
            list(read_lines(tmp_path / name))
        assert name in str(caught.value)
        return str(caught.value)

    assert "no such file" in error("missing", None)
    assert "latin, line 3: invalid UTF-8" in error("latin", b"a\nb\n\xe4\n")
    assert "surrogate, line 1: invalid UTF-8" in error("surrogate", b"\xed\xa0\x80\n")
    assert "broken gzip" in error("text.gz", b"this is not gzip\n")
    whole = gzip.compress("\n".join(map(str, range(10_000))).encode())
    assert "ends early" in error("cut.gz", whole[: len(whole) // 2])
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    assert error("damaged.gz", bytes(damaged))
    (tmp_path / "folder").mkdir()
    assert "cannot be read" in error("folder", None)


def test_parallel_files(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 3), ("c", 5), ("d", 2), ("e", 0)):
        write_lines(tmp_path / name, [f"{name}{number}" for number in range(count)])

    def paths(names: str) -> list[Path]:
        return [tmp_path / name for name in names]

    assert list(read_parallel(paths("ab"))) == [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]
    assert list(read_parallel(paths("ee"))) == []
    for names, counts in (("ac", (3, 5)), ("ca", (5, 3)), ("ad", (3, 2)), ("ea", (0, 3)), ("abcd", (3, 3, 5, 2))):
        with pytest.raises(UserError, match="different numbers of lines") as caught:
            list(read_parallel(paths(names)))
        for name, count in zip(names, counts, strict=True):
            assert f"{tmp_path / name} has {count}" in str(caught.value)


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_lines(path, ["old"])

    def interrupted() -> object:
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(path, interrupted())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="line end"):
        write_lines(path, ["one\ntwo"])
    assert path.read_bytes() == b"old\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_places_that_are_no_files(tmp_path: Path) -> None:
    write_lines("/dev/null", ["gone"])
    assert not Path("/dev/null").is_file()
    write_lines(tmp_path / "real", ["old"])
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_lines(tmp_path / "link", ["new"])
    assert (tmp_path / "link").is_symlink()
    assert list(read_lines(tmp_path / "real")) == ["new"]
    for path in (tmp_path, tmp_path / "missing" / "x"):
        with pytest.raises(UserError, match="cannot be written"):
            write_lines(path, ["x"])
