"""A survey of a text file: validity, size, hash, number of lines and kinds of line ends."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.data.text import LONGEST_LINE, StrPath, open_text_bytes, read_lines, text_chunks
from sparsenmt.errors import UserError
from sparsenmt.storage.files import name_file_in_errors, without_mark

_CHUNK = 1 << 20


@dataclass(frozen=True)
class TextSurvey:
    """The properties of a text file."""

    bytes: int
    """Size of the file on disk."""
    sha256: str
    """Hash of the uncompressed text, without a byte order mark."""
    lines: int
    characters: int
    returns: int
    r"""Lines that end in ``\r``, as in Windows; it is kept as text."""
    blank: bool
    """True if the text is only white space."""


def check_no_pipe(path: StrPath) -> None:
    """Raise UserError for a pipe or a device, which opening would wait for, and which can be read only once."""
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        raise UserError(
            "is a pipe or a device, which cannot be read more than once",
            where=str(path),
            hint="Write the text into a file.",
        )


def survey_text(
    path: StrPath, advance: Callable[[int], object] = lambda count: None, *, longest: int | None = LONGEST_LINE
) -> TextSurvey:
    """Read a text file to its end.

    Args:
        advance: called with the number of bytes of each read.
        longest: most bytes of a line; None: any number, as in the text of a language model.

    Raises:
        UserError: as `read_lines`; or the file is a pipe or a device.
    """
    check_no_pipe(path)
    digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
    lines = characters = returns = position = 0
    unended = 0  # bytes of the line at the end of what was read
    blank, last = True, b""
    try:
        with name_file_in_errors(Path(path)), open_text_bytes(path) as stream:
            file = getattr(stream, "fileobj", stream)  # the file under gzip
            while chunk := stream.read(_CHUNK):
                chunk = chunk if position else without_mark(chunk, str(path))
                digest.update(chunk)
                text = decoder.decode(chunk)
                lines += chunk.count(b"\n")
                characters += len(text)
                returns += chunk.count(b"\r\n") + (last == b"\r" and chunk[:1] == b"\n")
                blank = blank and (not text or text.isspace())
                last = chunk[-1:]  # empty, if there is nothing but a byte order mark
                end = chunk.find(b"\n")
                if longest is not None and unended + (len(chunk) if end < 0 else end) > longest:
                    raise _error_of_lines(path, longest)
                unended = unended + len(chunk) if end < 0 else len(chunk) - chunk.rfind(b"\n") - 1
                advance(file.tell() - position)
                position = file.tell()
            decoder.decode(b"", final=True)
            size = file.seek(0, 2)
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error):
        raise _error_of_lines(path, longest) from None
    lines += last not in (b"", b"\n")  # the last line may have no line end
    returns += last == b"\r"
    return TextSurvey(size, digest.hexdigest(), lines, characters, returns, blank)


def _error_of_lines(path: StrPath, longest: int | None) -> UserError:
    """Return the error of a text that is not valid: it is read line by line, to find the line number."""
    try:
        for _ in text_chunks(path) if longest is None else read_lines(path, longest=longest):
            pass
    except UserError as error:
        return error
    return UserError("changed while it was read", where=str(path), hint="Start again when the file is complete.")
