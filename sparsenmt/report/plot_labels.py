"""Labels of plots: any text of a user, as matplotlib shall draw it."""

from __future__ import annotations

import re
import unicodedata

from sparsenmt.errors import printable
from sparsenmt.report.columns import width

_CIRCLE = "\u25cc"
"""The dotted circle, on which a mark without a letter is drawn."""
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Variation selectors, which fonts may ignore, and matplotlib takes for characters."""


def label(text: str, most: int | None = None) -> str:
    """Return a text for matplotlib: no formulas, no control characters but line ends, and no longer than ``most``.

    Args:
        most: terminal columns of a line; None: any number.
    """
    lines = [line if most is None else shortened(line, most) for line in text.split("\n")]
    return "\n".join(_visible(line).replace("$", r"\$") for line in lines)


def _visible(line: str) -> str:
    shown = printable(_SELECTORS.sub("", line))
    return "".join(
        _CIRCLE + one if _is_mark(one) and not before.isalnum() and not _is_mark(before) else one
        for before, one in zip(" " + shown, shown, strict=False)
    )


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def shortened(text: str, most: int) -> str:
    """Cut the middle out of a text that takes more than ``most`` terminal columns."""
    if width(text) <= most:
        return text
    tail = _first(text[::-1], (most - 1) // 2)[::-1]
    return f"{_first(text, most - 1 - width(tail))}…{tail}"


def _first(text: str, columns: int) -> str:
    """Return the beginning of a text that fits into columns."""
    count = 0
    for end, one in enumerate(text):
        count += width(one)
        if count > columns:
            return text[:end]
    return text
