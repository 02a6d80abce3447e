"""A survey of a text file: validity, size, hash, number of lines and kinds of line ends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.data.text import LONGEST_LINE, StrPath, text_chunks
from sparsenmt.errors import UserError
from sparsenmt.storage.files import name_file_in_errors


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
    digest = hashlib.sha256()
    lines = characters = returns = 0
    blank, last = True, ""
    with name_file_in_errors(Path(path)):
        for text in text_chunks(path, advance, longest=longest):
            digest.update(text.encode())
            lines += text.count("\n")
            characters += len(text)
            returns += text.count("\r\n") + (last == "\r" and text[:1] == "\n")
            blank = blank and (not text or text.isspace())
            last = text[-1:] or last
    lines += last not in ("", "\n")  # the last line may have no line end
    returns += last == "\r"
    return TextSurvey(Path(path).stat().st_size, digest.hexdigest(), lines, characters, returns, blank)
