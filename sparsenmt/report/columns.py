"""Pieces as people read them, and text in columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from sparsenmt.data.vocabulary import SPACE
from sparsenmt.errors import printable


def shown_pieces(pieces: Sequence[str]) -> list[str]:
    """The space before a word is not shown, a space alone is; control characters are written as escapes."""
    return [printable(piece.removeprefix(SPACE) or piece) for piece in pieces]


def width(text: str) -> int:
    """Columns of a terminal that a text takes: ideographs take two, accents that stand for themselves none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def left(text: str, columns: int) -> str:
    """Filled up with blanks on the right."""
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """Filled up with blanks on the left."""
    return " " * (columns - width(text)) + text
