"""Text in aligned columns of a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence


def width(text: str) -> int:
    """Return the terminal columns that a text takes: ideographs take two, combining accents none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def left(text: str, columns: int) -> str:
    """Fill a text up with blanks on the right."""
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """Fill a text up with blanks on the left."""
    return " " * (columns - width(text)) + text


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of every column."""
    return [max(map(width, cells)) for cells in zip(*rows, strict=True)]


def aligned(rows: Sequence[Sequence[str]], *, flush_right: Collection[int] = (), gap: str = "  ") -> list[str]:
    """Align the cells of equally long rows in columns.

    Args:
        flush_right: numbers of the columns, from 0, whose cells are flush right.
        gap: text between two columns.
    """
    widths = column_widths(rows)
    pads = [right if i in flush_right else left for i in range(len(widths))]
    return [
        gap.join(pad(cell, size) for pad, cell, size in zip(pads, row, widths, strict=True)).rstrip() for row in rows
    ]
