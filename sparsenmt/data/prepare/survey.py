"""Reading every text once before any work: is it sound, how many lines, and what must be known of its contents."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.data.text import StrPath, open_text_bytes, read_lines
from sparsenmt.errors import UserError
from sparsenmt.files import name_file_in_errors

_CHUNK = 1 << 20


@dataclass(frozen=True)
class TextSurvey:
    """What was found in a file."""

    bytes: int
    """Size of the file, as it lies on the disk."""
    sha256: str
    """Hash of the text, unpacked."""
    lines: int
    returns: int
    r"""Lines that end in ``\r``: the line ends of Windows, of which it stays as text."""
    blank: bool
    """There is nothing but white space."""


def survey_text(path: StrPath, advance: Callable[[int], object] = lambda count: None) -> TextSurvey:
    """Read a text file to its end.

    Args:
        advance: hears how many bytes of the file were read.

    Raises:
        UserError: as `read_lines`, or it is no file that can be read more than once.
    """
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        raise UserError(
            "is a pipe or a device, which cannot be read more than once",
            where=str(path),
            hint="Write the text into a file.",
        )
    found = _Reader()
    try:
        with name_file_in_errors(Path(path)), open_text_bytes(path) as stream:
            file = getattr(stream, "fileobj", stream)  # below gzip
            place = 0
            while chunk := stream.read(_CHUNK):
                found.add(chunk)
                advance(file.tell() - place)
                place = file.tell()
            found.end()
            size = file.seek(0, 2)
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error):
        for _ in read_lines(path):  # line by line, to say where
            pass
        raise UserError(
            "changed while it was read", where=str(path), hint="Start again when the file is complete."
        ) from None
    return TextSurvey(size, found.digest.hexdigest(), found.lines, found.returns, found.blank)


class _Reader:
    """Looks at a text chunk by chunk."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.lines, self.returns, self.blank = 0, 0, True
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._last = b""

    def add(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        text = self._decoder.decode(chunk)
        self.lines += chunk.count(b"\n")
        self.returns += chunk.count(b"\r\n") + (self._last == b"\r" and chunk[:1] == b"\n")
        self._last = chunk[-1:]
        self.blank = self.blank and (not text or text.isspace())

    def end(self) -> None:
        """The text is over: a last line may lack its end."""
        self._decoder.decode(b"", final=True)
        self.lines += self._last not in (b"", b"\n")
        self.returns += self._last == b"\r"
