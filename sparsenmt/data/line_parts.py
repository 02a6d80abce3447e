"""The text of a language model: lines of any length, long ones in parts, so that no more than a part is in memory.

A line of more than `PART` characters is divided before the last space of its first `PART` characters that a space does
not follow, and what remains likewise; where there is no such space, after `PART` characters. No tokenizer has a token
that reaches over a space, so that the tokens of the parts are those of the line; after `PART` characters without a
space, this holds of characters and bytes only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from sparsenmt.data.text import StrPath, text_chunks

PART = 1_000_000
"""Most characters of a part."""


@dataclass(frozen=True)
class LinePart:
    """A line, or a part of a long one.

    Args:
        text: without the line feed.
        ends: True if it is the end of its line.
        inside_word: True if it begins inside a word of its line.
    """

    text: str
    ends: bool = True
    inside_word: bool = False

    @property
    def characters(self) -> int:
        """Number of characters, that of the line feed included."""
        return len(self.text) + self.ends

    @property
    def words(self) -> int:
        """Number of words that begin in it: what stands between white space, and the line feed."""
        return len(self.text.split()) - self.inside_word + self.ends

    @property
    def bytes(self) -> int:
        """Number of bytes in UTF-8, that of the line feed included."""
        return len(self.text.encode()) + self.ends


def read_line_parts(path: StrPath) -> Iterator[LinePart]:
    """The lines of a UTF-8 file, plain or gzipped, in parts; a last line without ``\\n`` counts.

    Raises:
        UserError: as `read_lines`, but for long lines.
    """
    return divide_lines(text_chunks(path), PART)


def divide_lines(chunks: Iterable[str], part: int) -> Iterator[LinePart]:
    """Divide a text, which comes in chunks of any size, into lines and parts of at most ``part`` characters."""
    rest, inside = "", False
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            last, inside = yield from _all_but_last(line, inside, part)
            yield LinePart(last, True, inside)
            inside = False
        rest, inside = yield from _all_but_last(rest, inside, part)
    if rest:
        yield LinePart(rest, True, inside)


def _all_but_last(line: str, inside: bool, part: int) -> Generator[LinePart, None, tuple[str, bool]]:
    """Yield the parts of a line but the last; returns that, and True if it begins inside a word, as ``inside`` says."""
    while len(line) > part:
        window = line[:part]
        cut = window.rfind(" ", 1, len(window.rstrip(" ")))
        if cut < 0:
            cut = part
        yield LinePart(line[:cut], False, inside)
        inside = not (line[cut - 1].isspace() or line[cut].isspace())
        line = line[cut:]
    return line, inside
