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
_MARKS = (b"\xef", b"\xff", b"\xfe", b"\x00")  # its first byte


def read_lines(path: StrPath, *, longest: int = LONGEST_LINE) -> Iterator[str]:
    """The lines of a UTF-8 file, without their ``\\n``; a last line without ``\\n`` counts.

    Gzip is recognised by its first bytes, and expected if the name ends in ``.gz``.

    Args:
        longest: most bytes of a line.

    Raises:
        UserError: the file is missing or unreadable, is not valid UTF-8 or has a line that is too long (with the line),
            or its gzip stream is broken.
    """
    return chain.from_iterable(_line_lists(text_chunks(path, longest=longest)))


def stream_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """The lines of an open UTF-8 stream, as they arrive; otherwise as `read_lines`."""
    return chain.from_iterable(_line_lists(_chunks(stream, name, LONGEST_LINE, lambda count: None)))


def _line_lists(chunks: Iterable[str]) -> Iterator[list[str]]:
    """The lines of a text that comes in chunks, in lists of those that end in a chunk; the last may have no end."""
    parts: list[str] = []  # of a line whose end has not come
    for chunk in chunks:
        first, *lines = chunk.split("\n")
        parts.append(first)
        if lines:
            yield ["".join(parts), *lines[:-1]]
            parts = lines[-1:]
    if rest := "".join(parts):
        yield [rest]


def text_chunks(
    path: StrPath, advance: Callable[[int], object] = lambda count: None, *, longest: int | None = None
) -> Iterator[str]:
    """The text of a UTF-8 file in parts of any size.

    Args:
        advance: called with the number of bytes of the file that were read for each.
        longest: most bytes of a line; None: any number.

    Raises:
        UserError: as `read_lines`.
    """
    with open_text_bytes(path) as stream:
        yield from _chunks(stream, os.fspath(path), longest, advance)


def _chunks(stream: IO[bytes], name: str, longest: int | None, advance: Callable[[int], object]) -> Iterator[str]:
    """The text of a stream, as `text_chunks`: before what is wrong come the lines that are not."""
    source, file = cast(BufferedIOBase, stream), getattr(stream, "fileobj", stream)  # the file under gzip
    number, position = 0, 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = 0  # bytes of the line before the chunk
    size = _AT_ONCE if longest is None else max(1, min(_AT_ONCE, longest))
    with _damage_explained(name, lambda: number):
        chunk = _beginning(source, size, name)
        while True:
            end = chunk.find(b"\n")
            if longest is not None and before + (end if end >= 0 else len(chunk)) > longest:
                raise UserError(
                    f"the line is longer than {longest:,} bytes",
                    where=f"{name}, line {number + 1:,}",
                    hint="Split it, or check that the file is text whose lines end in \\n.",
                )
            waiting = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                good = error.object[: error.start]
                line, number = good.rfind(b"\n") + 1, number + good.count(b"\n")
                yield good[:line].decode()
                place = error.start - line if line else before - waiting + error.start
                raise UserError(
                    f"invalid UTF-8 ({error.reason} at byte {place + 1} of the line)",
                    where=f"{name}, line {number + 1}",
                    hint="Convert the file to UTF-8, for instance with iconv.",
                ) from None
            yield text
            if not chunk:
                return
            number += chunk.count(b"\n")
            before = len(chunk) - chunk.rfind(b"\n") - 1 if end >= 0 else before + len(chunk)
            if file.seekable():
                advance(file.tell() - position)
                position = file.tell()
            chunk = source.read1(size)


def _beginning(source: BufferedIOBase, size: int, name: str) -> bytes:
    """The first chunk of a text, without a byte order mark; UserError for other encodings, and for gzip in a stream."""
    chunk = source.read1(size)
    while chunk[:1] in _MARKS and len(chunk) < _LONGEST_MARK and (more := source.read1(size)):
        chunk += more  # as a pipe gives it
    if chunk.startswith(_GZIP_MAGIC):
        hint = "Decompress it first, for instance with `zcat`, or name the file with --input."
        raise UserError("this is gzip, not text", where=name, hint=hint)
    return without_mark(chunk, name)


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
    streams = [_line_lists(text_chunks(path, longest=LONGEST_LINE)) for path in paths]
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


def character_count(text: str) -> int:
    """Count the characters but white space."""
    return len("".join(text.split()))
