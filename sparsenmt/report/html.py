"""HTML for notebooks: marked words, and matrices as tables of colours.

All text is escaped here, control characters and signs that change the direction of writing, too. Styles stand in the
elements, as notebooks drop style sheets of files that are not trusted; colours do not depend on the page's theme.
Shapes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import printable

MOST_CELLS = 60
"""Most rows, and most columns, of a table of colours; of a larger matrix the first ones are shown."""
_TEXT, _GONE, _WHITE = "#1a1a1a", "#c00000", "#ffffff"
_LIGHT, _DARK = (222, 235, 247), (8, 48, 107)  # of the least and of the largest weight that is not 0
_KEPT = (161, 217, 155)
_PLAIN = "border:none;text-align:left;"


def text(value: str) -> str:
    """Return a text for the inside of an element or of an attribute in quotation marks."""
    return escape(printable(value), quote=True)


def marked(words: Sequence[Sequence[tuple[str, float]]]) -> str:
    """Return words with a background by the gates of their tokens: dropped ones are grey and struck through.

    Args:
        words: the tokens of each word, with their gates.
    """
    return " ".join("".join(starmap(_token, word)) for word in words)


def _token(name: str, gate: float) -> str:
    share = 0.25 + 0.75 * min(max(gate, 0.0), 1.0)  # a small gate differs from none
    colour = _mix((255, 255, 255), _KEPT, share)
    style = f"background:{colour};color:{_TEXT}"
    if gate == 0:
        style = f"background:{_WHITE};color:#8a8a8a;text-decoration:line-through"
    return f'<span style="{style};padding:1px 2px;border-radius:2px" title="gate {gate:.3g}">{text(name)}</span>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; heads are texts, cells are HTML."""
    first = "".join(_left("th", text(head)) for head in heads)
    lines = ["".join(_left("td", cell) for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"


def _left(tag: str, inner: str) -> str:
    return f'<{tag} style="text-align:left">{inner}</{tag}>'


def colour_table(
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    caption: str,
    gone: Sequence[bool] = (),
    numbers: bool = True,
) -> str:
    """Return a matrix (R, C) as a table of colours, darker where more: white with a dot is exactly 0.

    Args:
        gone: (C,) True for columns whose names are struck through in red; empty: none.
        numbers: True: the values stand in the cells, in percent.
    """
    shown = values[:MOST_CELLS, :MOST_CELLS]
    most = float(values.max(initial=0.0))
    notes = [caption]
    if shown.shape != values.shape:
        drawn = f"{shown.shape[0]:,} of {len(rows):,} rows and {shown.shape[1]:,} of {len(columns):,} columns"
        notes.append(f"the first {drawn}")
    marks = [*gone, *[False] * (len(columns) - len(gone))]
    names = list(zip(columns, marks, strict=True))[:MOST_CELLS]
    lines = []
    for name, line in zip(rows, shown.tolist(), strict=False):
        cells = "".join(
            _cell(value, most, f"{name} | {key}", numbers) for key, value in zip(columns, line, strict=False)
        )
        lines.append(f'<tr><th style="{_PLAIN}font-weight:normal;white-space:nowrap">{text(name)}</th>{cells}</tr>')
    heads = f"<tr><th></th>{''.join(starmap(_head, names))}</tr>"
    return (
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:12px">'
        f'<caption style="text-align:left;caption-side:bottom">{text("; ".join(notes))}</caption>'
        f"<thead>{heads}</thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _head(name: str, gone: bool) -> str:
    style = f"color:{_GONE};text-decoration:line-through;" if gone else ""
    turned = "writing-mode:vertical-rl;white-space:nowrap;"
    inner = f'<div style="{turned}{style}">{text(name)}</div>'
    return f'<th style="{_PLAIN}font-weight:normal;vertical-align:bottom">{inner}</th>'


def _cell(value: float, most: float, title: str, numbers: bool) -> str:
    """Return the cell of a value; ``most``: the value of the darkest colour."""
    place = "border:1px solid #e8e8e8;min-width:20px;height:20px;padding:0;text-align:center;"
    if value == 0:
        return f'<td style="{place}background:{_WHITE};color:#b0b0b0" title="{text(title)}: 0">·</td>'
    share = value / most
    colours = f"background:{_mix(_LIGHT, _DARK, share)};color:{_WHITE if share > 0.5 else _TEXT}"
    percent = (f"{value * 100:.0f}" if value >= 0.005 else "&lt;1") if numbers else ""
    return f'<td style="{place}{colours}" title="{text(title)}: {value:.4g}">{percent}</td>'


def _mix(first: tuple[int, int, int], second: tuple[int, int, int], share: float) -> str:
    """Return the colour between two."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
