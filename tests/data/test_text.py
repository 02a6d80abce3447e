"""Lines end at \\n and nowhere else; broken files are named."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparsenmt.data.prepare.survey import survey_text
from sparsenmt.data.tagging.tagged_text import read_tagged
from sparsenmt.data.text import LONGEST_LINE, read_lines, read_parallel, read_whole, text_windows, write_lines
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
    assume(not lines or not lines[0].startswith("\ufeff"))  # a byte order mark
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


# --- bounded memory ----------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], object]] = {
    "lines": lambda path: [len(line) for line in read_lines(path)],
    "rows": lambda path: [len(row) for row in read_parallel([path, path])],
    "survey": survey_text,
    "tags": lambda path: [len(each.words) for each in read_tagged(path)],
    "whole": lambda path: len(read_whole(path, LONGEST_LINE)),
}


def most_memory(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_line_without_end_is_refused_in_bounded_memory(
    name: str, reader: Callable[[Path], object], tmp_path: Path
) -> None:
    content = b"x" * (3 * LONGEST_LINE)
    (tmp_path / name).write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    del content

    def read() -> None:
        with pytest.raises(UserError, match=r"text(\.gz)?, line 1: the line is longer than 10,000,000 bytes"):
            reader(tmp_path / name)

    assert most_memory(read) < 3 * LONGEST_LINE


@pytest.mark.parametrize("end", [b"", b"\n", b"\nb\n"])
def test_the_longest_line_is_read(end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\n" + b"x" * LONGEST_LINE + end)
    assert len(list(read_lines(path))[1]) == LONGEST_LINE
    assert survey_text(path).lines == 2 + (end == b"\nb\n")
    path.write_bytes(b"a\n" + b"x" * (LONGEST_LINE + 1) + end)
    for reader in (lambda path: list(read_lines(path)), survey_text):
        with pytest.raises(UserError, match="text, line 2: the line is longer"):
            reader(path)


def test_empty_lines_before_tags_take_no_memory(tmp_path: Path) -> None:
    count = 100_000
    (tmp_path / "tags.gz").write_bytes(gzip.compress(b"\n" * count + b"a_N\n", 1))
    found = []
    assert most_memory(lambda: found.append(sum(1 for _ in read_tagged(tmp_path / "tags.gz")))) < 4_000_000
    assert found == [count + 1]


def test_a_sentence_of_conll_is_bounded(tmp_path: Path) -> None:
    row = "\t".join(["1", "x" * 100_000, *"_" * 8]) + "\n"
    (tmp_path / "tags").write_text(row * 110, encoding="utf-8")
    with pytest.raises(UserError, match=r"tags, line \d+: the sentence is longer than 10,000,000 characters"):
        list(read_tagged(tmp_path / "tags"))


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.integers(1, 30))
def test_windows_divide_at_the_same_lines(sizes: list[int], window: int, characters: int) -> None:
    """Whatever the lines' lengths, a multiple of the window begins a part: a run may resume there."""
    parts = list(text_windows(iter(sizes), window, lambda size: size, characters=characters))
    assert [size for part in parts for size in part] == sizes
    assert all(parts) and all(sum(part) <= characters or len(part) == 1 for part in parts)
    starts = {sum(map(len, parts[:number])) for number in range(len(parts))}
    assert set(range(0, len(sizes), window)) <= starts
    if sum(sizes) <= characters:
        assert len(parts) == -(-len(sizes) // window)


def test_a_window_is_not_read_ahead_of() -> None:
    given = iter(range(10))
    assert next(text_windows(given, 1, lambda size: size)) == [0]
    assert next(given) == 1
