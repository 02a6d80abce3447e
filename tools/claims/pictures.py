"""Pictures of figures in SVG: lines with 95% intervals, or curves; the same bytes for the same records.

Colours are those of Okabe and Ito, which the colour-blind tell apart; curves differ in their marks, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from sparsenmt.errors import UserError
from tools.claims.record import Picture, Record
from tools.claims.template import filled, locate, number
from tools.claims.verdict import Measurement, measure

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_WIDTH, _LINE, _LETTER, _TOP, _BOTTOM, _RIGHT, _HEIGHT = 620, 24, 6.3, 12, 46, 64, 210
_TICKS = 6


@dataclass(frozen=True)
class _Axis:
    """An axis from value to place."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values, at most about `_TICKS`."""
        rough = (self.high - self.low) / _TICKS
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [round(each * step, 10) for each in range(first, math.floor(self.high / step + 1e-9) + 1)]


def picture(drawn: Picture, record: Record) -> str:
    """Return the SVG of a picture."""
    drawn = _with_figures(drawn, record)
    body, height = _curves(drawn, record) if drawn.curves else _bars(drawn, record)
    begin = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' viewBox='0 0 {_WIDTH} {height}' "
    )
    return "\n".join(
        [
            begin + "font-family='Helvetica, Arial, sans-serif' font-size='12' fill='#222'>",
            f"<title>{escape(drawn.axis)}</title>",
            f"<rect width='{_WIDTH}' height='{height}' fill='white'/>",
            *body,
            "</svg>",
            "",
        ]
    )


def _with_figures(drawn: Picture, record: Record) -> Picture:
    """Return the picture with the figures in its words."""

    def words(text: str) -> str:
        return filled(text, None, record)

    bars = [bar.model_copy(update={"label": words(bar.label)}) for bar in drawn.bars]
    curves = {words(label): points for label, points in drawn.curves.items()}
    titles = {"axis": words(drawn.axis), "vertical": words(drawn.vertical)}
    return drawn.model_copy(update={"bars": bars, "curves": curves, **titles})


def _found(name: str, record: Record) -> tuple[Measurement, int, str]:
    """Return a measured figure with its decimals and unit."""
    claim, rest = locate(name, None, record)
    found = measure(claim, rest, record.common) if rest in claim.figures else None
    if found is None:
        raise UserError("a picture needs a figure that is not measured", where=name)
    return found, claim.figures[rest].decimals, claim.figures[rest].unit


def _span(values: Sequence[float], zero: bool) -> tuple[float, float]:
    """Return the ends of an axis around finite values."""
    shown = [value for value in values if math.isfinite(value)] + [0.0] * zero
    low, high = min(shown), max(shown)
    room = (high - low or abs(high) or 1.0) * 0.06
    return (0.0 if low == 0 and not zero else low - room), high + room


def _bars(drawn: Picture, record: Record) -> tuple[list[str], int]:
    found = [_found(bar.figure, record) for bar in drawn.bars]
    left = max(len(bar.label) for bar in drawn.bars) * _LETTER + 20
    values = [end for each, _, _ in found for end in (each.low, each.high, each.value)]
    axis = _Axis(*_span(values, drawn.zero), left, _WIDTH - _RIGHT)
    bottom = _TOP + _LINE * len(drawn.bars)
    lines = [*_ticks(axis, bottom, drawn.axis)]
    if drawn.zero:
        lines.append(_line(axis.place(0), _TOP, axis.place(0), bottom, "#222", dashed=True))
    for place, (bar, (each, decimals, unit)) in enumerate(zip(drawn.bars, found, strict=True)):
        y, color = _TOP + _LINE * (place + 0.5), _COLORS[bar.color]
        lines.append(f"<text x='{left - 10:.0f}' y='{y + 4:.0f}' text-anchor='end'>{escape(bar.label)}</text>")
        if each.low < each.high and math.isfinite(each.high - each.low):
            lines.append(_line(axis.place(each.low), y, axis.place(each.high), y, color, width=3))
        lines.append(_mark(axis.place(each.value), y, 0, color))
        shown = number(each.value, decimals, unit=unit, signed=drawn.zero)
        lines.append(f"<text x='{_WIDTH - _RIGHT + 6}' y='{y + 4:.0f}'>{shown}</text>")
    return lines, bottom + _BOTTOM


def _curves(drawn: Picture, record: Record) -> tuple[list[str], int]:
    points = {
        label: [(_found(point.x, record)[0].value, _found(point.y, record)[0].value) for point in curve]
        for label, curve in drawn.curves.items()
    }
    every = [point for curve in points.values() for point in curve]
    left, bottom = 56, _TOP + _HEIGHT
    legend = max(map(len, points)) * _LETTER + 30
    across = _Axis(*_span([x for x, _ in every], False), left, _WIDTH - legend - 12)
    up = _Axis(*_span([y for _, y in every], drawn.zero), bottom, _TOP)
    lines = list(_ticks(across, bottom, drawn.axis))
    for tick in up.ticks:
        lines.append(_line(left, up.place(tick), across.end, up.place(tick), "#ddd"))
        lines.append(f"<text x='{left - 6}' y='{up.place(tick) + 4:.0f}' text-anchor='end'>{tick:g}</text>")
    middle = (_TOP + bottom) / 2
    turned = f"transform='rotate(-90 14 {middle:.0f})' text-anchor='middle'"
    lines.append(f"<text x='14' y='{middle:.0f}' {turned}>{escape(drawn.vertical)}</text>")
    for place, (label, curve) in enumerate(points.items()):
        color, y = _COLORS[place], _TOP + 14 + 22 * place
        places = [(across.place(x), up.place(value)) for x, value in curve]
        path = " ".join(f"{x:.1f},{height:.1f}" for x, height in places)
        lines.append(f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='2'/>")
        lines += [_mark(x, height, place, color) for x, height in places]
        lines.append(_mark(across.end + 18, y, place, color))
        lines.append(f"<text x='{across.end + 28:.0f}' y='{y + 4:.0f}'>{escape(label)}</text>")
    return lines, bottom + _BOTTOM


def _ticks(axis: _Axis, bottom: float, title: str) -> Iterator[str]:
    for tick in axis.ticks:
        yield _line(axis.place(tick), _TOP, axis.place(tick), bottom, "#ddd")
        yield f"<text x='{axis.place(tick):.1f}' y='{bottom + 16:.0f}' text-anchor='middle'>{tick:g}</text>"
    yield _line(axis.start, bottom, axis.end, bottom, "#222")
    middle = (axis.start + axis.end) / 2
    yield f"<text x='{middle:.0f}' y='{bottom + 36:.0f}' text-anchor='middle'>{escape(title)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, color: str, *, width: int = 1, dashed: bool = False) -> str:
    dashes = " stroke-dasharray='4 3'" if dashed else ""
    ends = f"x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}'"
    return f"<line {ends} stroke='{color}' stroke-width='{width}'{dashes}/>"


def _mark(x: float, y: float, kind: int, color: str) -> str:
    """Return a circle, square, triangle or diamond."""
    if kind % 4 == 0:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{color}'/>"
    shapes = {
        1: ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        2: ((0, -5), (5, 4), (-5, 4)),
        3: ((0, -6), (6, 0), (0, 6), (-6, 0)),
    }
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in shapes[kind % 4])
    return f"<polygon points='{path}' fill='{color}'/>"
