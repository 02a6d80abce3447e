"""Line-aligned text files, plain or gzipped.

A line ends at ``\\n`` and nowhere else: ``\\r``, form feeds, NUL and U+2028 inside a line are data. A byte order mark
at the beginning of a file is not: see `files.without_mark`.
"""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from typing import IO, TypeVar, cast

from sparsenmt.errors import UserError
from sparsenmt.storage.files import atomic_writer, explain_write_errors, without_mark

StrPath = str | os.PathLike[str]
S = TypeVar("S")
T = TypeVar("T")

LONGEST_LINE = 10_000_000
"""Bytes. A longer line is refused while it is read: its tokens would need 50 times as much memory, and a gzip file of a
few kilobytes can hold it."""

_GZIP_MAGIC = b"\x1f\x8b"
_BATCH_LINES, _BATCH_CHARACTERS = 10_000, 1_000_000
_AT_ONCE = 1 << 18  # bytes that are read at once
_LONGEST_MARK = 4  # bytes of a byte order mark


def read_lines(path: StrPath, *, longest: int = LONGEST_LINE) -> Iterator[str]:
    """The lines of a UTF-8 file, without their ``\\n``; a last line without ``\\n`` counts.

    Gzip is recognised by its first bytes, and expected if the name ends in ``.gz``.

    Args:
        longest: most bytes of a line.

    Raises:
        UserError: the file is missing or unreadable, is not valid UTF-8 or has a line that is too long (with the line),
            or its gzip stream is broken.
    """
    for lines in _line_lists(path, longest):
        yield from lines


def _line_lists(path: StrPath, longest: int) -> Iterator[list[str]]:
    """`read_lines`, in lists of the lines that are read together."""
    name, number = os.fspath(path), 0
    with _damage_explained(name, lambda: number), open_text_bytes(path) as stream:
        for part in _whole_lines(cast(BufferedIOBase, stream), name, longest):
            for lines in _decoded(part if number else without_mark(part, name), name, number):
                number += len(lines)
                yield lines


def text_chunks(path: StrPath) -> Iterator[str]:
    """The text of a UTF-8 file whose lines may have any length, in parts of any size.

    Raises:
        UserError: as `read_lines`, but for long lines.
    """
    name, number = os.fspath(path), 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    before, begun = 0, False  # bytes of the line before the chunk
    with _damage_explained(name, lambda: number), open_text_bytes(path) as stream:
        while True:
            chunk = cast(BufferedIOBase, stream).read1(_AT_ONCE)
            if not begun:
                while 0 < len(chunk) < _LONGEST_MARK and (more := cast(BufferedIOBase, stream).read1(_AT_ONCE)):
                    chunk += more  # as a pipe gives it
                chunk, begun = without_mark(chunk, name), True
            waiting = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                good = error.object[: error.start]
                line = good.rfind(b"\n") + 1
                place = error.start - line if line else before - waiting + error.start
                raise _invalid_utf8(name, number + 1 + good.count(b"\n"), error.reason, place) from None
            yield text
            if not chunk:
                return
            number += chunk.count(b"\n")
            before = len(chunk) - chunk.rfind(b"\n") - 1 if b"\n" in chunk else before + len(chunk)


@contextmanager
def _damage_explained(name: str, lines: Callable[[], int]) -> Iterator[None]:
    """Replace the errors of a damaged gzip file; ``lines``: returns the number of those that were read."""
    try:
        yield
    except EOFError:
        raise UserError(
            f"the gzip file ends early, after line {lines()}",
            where=name,
            hint="It was probably truncated when it was copied: copy it again.",
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"broken gzip file: {error}", where=name, hint="Copy it again, or name the unpacked text."
        ) from None


def _whole_lines(stream: BufferedIOBase, name: str, longest: int) -> Iterator[bytes]:
    """The bytes of a stream in parts of whole lines, as they arrive; see `byte_lines`."""
    number, rest = 0, b""
    while chunk := stream.read1(max(1, min(_AT_ONCE, longest))):
        first, end = chunk.find(b"\n"), chunk.rfind(b"\n") + 1
        if len(rest) + (first if end else len(chunk)) > longest:
            raise _too_long(name, number + 1, longest)
        if not end:
            rest += chunk
            continue
        part, rest = rest + chunk[:end], chunk[end:]
        number += part.count(b"\n")
        yield part
    if rest:
        yield rest


def _decoded(part: bytes, name: str, before: int) -> Iterator[list[str]]:
    """Decode a part of whole lines, after ``before`` others; lines before one that is invalid come first."""
    try:
        lines = part.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        yield from ([line] for line in decode_lines(part.removesuffix(b"\n").split(b"\n"), name, first=before + 1))
        return
    if not lines[-1]:
        lines.pop()
    yield lines


def byte_lines(stream: IO[bytes], name: str, *, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """The lines of a stream with their ends; no more than ``longest`` bytes of a line are ever read.

    Raises:
        UserError: a line is longer; ``name`` is the file's name in the message.
    """
    number = 0
    while line := stream.readline(longest + 1):
        number += 1
        if len(line) > longest and not line.endswith(b"\n"):
            raise _too_long(name, number, longest)
        if number > 1 or (line := without_mark(line, name)):
            yield line


def _too_long(name: str, number: int, longest: int) -> UserError:
    return UserError(
        f"the line is longer than {longest:,} bytes",
        where=f"{name}, line {number:,}",
        hint="Split it, or check that the file is text whose lines end in \\n.",
    )


def read_whole(path: StrPath, most: int) -> str:
    """The text of a UTF-8 file of at most ``most`` characters, plain or gzipped; see `read_lines`.

    Raises:
        UserError: it is longer; or as `read_lines`.
    """
    lines: list[str] = []
    left = most
    for line in read_lines(path, longest=most):
        left -= len(line) + 1
        if left < 0:
            raise UserError(
                f"the text is longer than {most:,} characters",
                where=os.fspath(path),
                hint="Divide it into several files.",
            )
        lines.append(line)
    return "\n".join(lines)


def decode_lines(lines: Iterable[bytes], name: str, *, first: int = 1) -> Iterator[str]:
    """Decode lines of bytes, split at ``\\n``, to text without line ends.

    Args:
        name: of the file, in messages.
        first: number of the first line, in messages.

    Raises:
        UserError: a line is not valid UTF-8.
    """
    for number, line in enumerate(lines, start=first):
        try:
            yield line.removesuffix(b"\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise _invalid_utf8(name, number, error.reason, error.start) from None


def _invalid_utf8(name: str, number: int, reason: str, start: int) -> UserError:
    """The error of line ``number``, whose byte ``start``, from 0, is not valid."""
    return UserError(
        f"invalid UTF-8 ({reason} at byte {start + 1} of the line)",
        where=f"{name}, line {number}",
        hint="Convert the file to UTF-8, for instance with iconv.",
    )


def read_parallel(paths: Sequence[StrPath]) -> Iterator[tuple[str, ...]]:
    """The rows of several line-aligned files.

    Raises:
        UserError: the files have different numbers of lines; or as `read_lines`.
    """
    for texts in read_blocks(paths):
        yield from zip(*texts, strict=True)


def read_blocks(paths: Sequence[StrPath]) -> Iterator[tuple[list[str], ...]]:
    """The lines of several line-aligned files, in blocks: a list for each file, of equal lengths.

    Raises:
        UserError: the files have different numbers of lines; or as `read_lines`.
    """
    streams = [_line_lists(path, LONGEST_LINE) for path in paths]
    waiting: list[list[str]] = [[] for _ in paths]
    count = 0
    while True:
        for lines, stream in zip(waiting, streams, strict=True):
            _fill(lines, stream)
        here = min(*map(len, waiting), _BATCH_LINES)
        if not here:
            break
        yield tuple(lines[:here] for lines in waiting)
        for lines in waiting:
            del lines[:here]
        count += here
    # At least one file has ended: read the others to their ends, to name every count.
    rests = [len(lines) + sum(map(len, stream)) for lines, stream in zip(waiting, streams, strict=True)]
    check_aligned(paths, [count + rest for rest in rests])


def _fill(lines: list[str], stream: Iterator[list[str]]) -> None:
    """Append lines until there are enough of them, or enough characters, for a block."""
    characters = sum(map(len, lines))
    while len(lines) < _BATCH_LINES and characters < _BATCH_CHARACTERS:
        more = next(stream, None)
        if more is None:
            return
        lines += more
        characters += sum(map(len, more))


def check_aligned(paths: Sequence[StrPath], counts: Sequence[int]) -> None:
    """Check that files have the same number of lines.

    Raises:
        UserError: they differ; the message names all files and counts.
    """
    if len(set(counts)) > 1:
        sizes = " but ".join(f"{os.fspath(path)} has {size:,}" for path, size in zip(paths, counts, strict=True))
        raise UserError(
            f"line-aligned files have different numbers of lines: {sizes}",
            hint="Line n of one file must belong to line n of the other; only \\n ends a line.",
        )


def pair_lines(
    items: Iterator[T], lines: Iterable[S], first: int, check_counts: Callable[[int, int], None]
) -> Iterator[tuple[T, S]]:
    """Pair the lines of a text, from line ``first`` (from 0) on, with the items of a line-aligned file.

    Args:
        items: of all lines of the text.
        check_counts: called at the end with the numbers of items and of lines; raises an error if they differ.
    """
    count = sum(1 for _ in islice(items, first))
    rest = iter(lines)
    for line in rest:
        item = next(items, None)
        if item is None:
            check_counts(count, count + 1 + sum(1 for _ in rest))
            return
        count += 1
        yield item, line
    check_counts(count + sum(1 for _ in items), count)


def bounded_batches(
    items: Iterable[T], size: Callable[[T], int], *, most: int = _BATCH_LINES, characters: int = _BATCH_CHARACTERS
) -> Iterator[list[T]]:
    """Batches of at most ``most`` items with at most ``characters`` in total; a longer item is a batch of its own.

    Args:
        size: returns the number of characters of an item.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        more = size(item)
        if batch and (len(batch) >= most or total + more > characters):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += more
    if batch:
        yield batch


def text_windows(
    items: Iterable[T], window: int, size: Callable[[T], int], *, characters: int = 64_000_000
) -> Iterator[list[T]]:
    """Lists of ``window`` items, fewer in the last one; a list with more than ``characters`` in total is divided.

    Args:
        size: returns the number of characters of an item.
    """
    rest = iter(items)
    for first in rest:
        yield from bounded_batches(chain([first], islice(rest, window - 1)), size, most=window, characters=characters)


def check_readable(path: StrPath) -> None:
    """Check that a file can be read.

    Raises:
        UserError: it is missing or cannot be read.
    """
    with open_text_bytes(path):
        pass


def write_lines(path: StrPath, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, each ended by ``\\n``; regular files are written atomically.

    Raises:
        UserError: the file cannot be written.
        ValueError: a line contains ``\\n``.
    """
    target = Path(path)
    special = target.exists() and not target.is_file()  # a pipe or a device cannot be replaced
    # A symbolic link stays one: its target is replaced.
    with explain_write_errors(path), open(target, "wb") if special else atomic_writer(target.resolve()) as stream:
        for line in lines:
            if "\n" in line:
                raise ValueError("a line cannot contain a line end")
            stream.write(line.encode("utf-8") + b"\n")


@contextmanager
def open_text_bytes(path: StrPath) -> Iterator[IO[bytes]]:
    """The bytes of a text file, decompressed if it is a gzip file.

    Raises:
        UserError: the file is missing or cannot be read.
    """
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open(path, "rb"))
            is_gzip = stream.peek(2)[:2] == _GZIP_MAGIC  # a pipe cannot be read twice
        except FileNotFoundError:
            raise UserError("no such file", where=os.fspath(path), hint="Check the path.", missing=path) from None
        except OSError as error:
            raise UserError(
                f"cannot be read: {error.strerror}", where=os.fspath(path), hint="Check the path and its permissions."
            ) from None
        if is_gzip or os.fspath(path).endswith(".gz"):
            yield cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=stream)))
        else:
            yield stream
