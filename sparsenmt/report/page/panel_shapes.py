"""The shapes that a panel consists of in a page: where lines, marks, bars, intervals and ticks lie, in pixels.

The template `panel.svg` draws them. A panel means what it means in `report.plots`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sparsenmt.report.columns import width
from sparsenmt.report.page.axis_scale import AxisScale, ends_of, tick_text
from sparsenmt.report.plot_labels import shortened
from sparsenmt.report.plots import Panel, Points, left_end, range_of_steps

NARROW = 420
"""The width of a panel, unless the names at its x axis need more."""
_HEIGHT, _WIDEST = 270, 940
_LETTER, _LINE = 6.6, 15
_LONGEST_TICK = 24  # letters
_MOST_POINTS, _MOST_MARKS = 1_000, 60
_TURNED = 0.5  # the height of a turned label, as a share of its length

# Marks around (0, 0), in the order of the series: circle, square, triangle, diamond, triangle down, plus, cross, star.
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "M-3.6-3.6h7.2v7.2h-7.2Z",
    "M0-4.6 4.4 3.6h-8.8Z",
    "M0-5 4.4 0 0 5-4.4 0Z",
    "M0 4.6 4.4-3.6h-8.8Z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3Z",
    "M-4.2-2.8-2.8-4.2 0-1.4 2.8-4.2 4.2-2.8 1.4 0 4.2 2.8 2.8 4.2 0 1.4-2.8 4.2-4.2 2.8-1.4 0Z",
    "M0-5 1.3-1.6 4.9-1.5 2 .7 3 4.2 0 2.1-3 4.2-2 .7-4.9-1.5-1.3-1.6Z",
)
COLOURS = len(MARKS)
"""The number of colours; the classes of a series are those of its index modulo this."""


@dataclass(frozen=True)
class Mark:
    """A mark, or a bar with a width and a height, and the text that names its values."""

    x: float
    y: float
    text: str
    width: float = 0.0
    height: float = 0.0


@dataclass(frozen=True)
class SeriesShapes:
    """The shapes of one series.

    Args:
        index: of the series, which decides colour, stroke and form of the marks.
        line: the path of its line; empty: none.
        intervals: (x, y of the lower end, y of the upper end).
    """

    name: str
    index: int
    line: str
    marks: tuple[Mark, ...]
    bars: tuple[Mark, ...]
    intervals: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class PanelShapes:
    """The shapes of a panel.

    Args:
        left, right, top, bottom: the edges of the area between the axes.
        x_ticks: (place, lines of its text).
        turned: True: texts at the x axis are turned, since they are too long.
        level: y of the line to compare with; None: there is none.
    """

    panel: Panel
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[tuple[float, tuple[str, ...]], ...]
    y_ticks: tuple[tuple[float, str], ...]
    turned: bool
    series: tuple[SeriesShapes, ...]
    level: float | None


def panel_shapes(panel: Panel, models: Sequence[str] = ()) -> PanelShapes:
    """Lay a panel out.

    Args:
        models: labels in the order of their colours, which series of these names have in every panel.
    """
    texts = [tuple(shortened(line, _LONGEST_TICK) for line in name.split("\n")) for _, name in panel.ticks]
    longest = max((width(line) for lines in texts for line in lines), default=0)
    across = max(NARROW, min(_WIDEST, round(len(texts) * (longest + 1) * _LETTER) + 80))
    y_low, y_high = _y_ends(panel)
    y_texts = [tick_text(value, percent="y" in panel.percent) for value in AxisScale(y_low, y_high, 0, 1).ticks(6)]
    left = 30 + _LETTER * max(map(len, y_texts), default=1)
    turned = bool(texts) and (longest + 1) * _LETTER > (across - left - 12) / len(texts)
    lines = max(map(len, texts), default=1)
    below = longest * _LETTER * _TURNED + lines * _LINE if turned else lines * _LINE
    height = round(_HEIGHT + below - _LINE)
    bottom = height - below - 30
    x = AxisScale(*_x_ends(panel), left, across - 12)
    y = AxisScale(y_low, y_high, bottom, 12)
    x_ticks = [(x.place(value), text) for (value, _), text in zip(panel.ticks, texts, strict=True)] or [
        (x.place(value), (tick_text(value, percent="x" in panel.percent),)) for value in x.ticks(6)
    ]
    of_models = set(panel.series) <= set(models)
    series = [
        replace(_series_shapes(panel, i, name, x, y), index=models.index(name) if of_models else i)
        for i, name in enumerate(panel.series)
    ]
    y_ticks = tuple(zip(map(y.place, y.ticks(6)), y_texts, strict=True))
    level = None if panel.level is None else y.place(panel.level[1])
    edges = (left, across - 12.0, 12.0, bottom)
    return PanelShapes(panel, across, height, *edges, tuple(x_ticks), y_ticks, turned, tuple(series), level)


def _x_ends(panel: Panel) -> tuple[float, float]:
    values = [x for points in panel.series.values() for x, _ in points]
    if panel.x_range is not None:
        return range_of_steps(panel) if panel.style == "steps" else panel.x_range
    if panel.style == "bars":
        return min(values, default=0.0) - 0.5, max(values, default=0.0) + 0.5
    if panel.style == "steps" and values:
        return min(values), max(max(values), min(values) + 1e-9)
    # With a margin beside the points: a mark on the axis would be half hidden.
    from_zero = "x" in panel.percent and left_end(values) is not None
    return ends_of([*values, 0.0] if from_zero else values)


def _y_ends(panel: Panel) -> tuple[float, float]:
    values = [y for points in panel.series.values() for _, y in points if y is not None]
    values += [end for ends in panel.intervals.values() for pair in ends if pair is not None for end in pair]
    values += [] if panel.level is None else [panel.level[1]]
    low, high = ends_of(values)
    if panel.y_range is not None:
        bottom, top = panel.y_range
        return bottom, max(high if top is None else top, bottom + 1e-9)
    if "y" in panel.percent or panel.style in ("steps", "bars"):
        return min(0.0, low if min(values, default=0.0) < 0 else 0.0), max(high, 1e-9)
    return low, high


def _series_shapes(panel: Panel, i: int, name: str, x: AxisScale, y: AxisScale) -> SeriesShapes:
    points = [point for point in panel.series[name] if x.low <= point[0] <= x.high]
    bars: list[Mark] = []
    marks: list[Mark] = []
    line = ""
    middles = [x.place(place) for place, _ in points]
    if panel.style == "bars":
        size = 0.8 / len(panel.series)
        middles = [x.place(place + (i + 0.5) * size - 0.4) for place, _ in points]
        bars = list(_bars(panel, name, points, middles, x.place(size) - x.place(0.0), y))
    elif panel.style == "steps":
        line = _path([part for a, b in pairwise(points) for part in ((a[0], a[1]), (b[0], a[1]))], x, y)
    else:
        drawn = panel.style != "points" or name in panel.drawn
        line = _path(_thinned(points), x, y) if drawn else ""
        few = len(points) <= _MOST_MARKS or panel.style == "points"
        alone = sum(value is not None for _, value in points) == 1  # no line leads to it
        if alone or (few and panel.style != "lines" and name not in panel.drawn):
            marks = [
                Mark(at, y.place(value), value_text(panel, name, place, value))
                for at, (place, value) in zip(middles, points, strict=True)
                if value is not None
            ]
    ends = {point[0]: pair for point, pair in zip(panel.series[name], panel.intervals.get(name, ()), strict=False)}
    intervals = [
        (at, y.place(pair[0]), y.place(pair[1]))
        for at, (place, _) in zip(middles, points, strict=True)
        if (pair := ends.get(place)) is not None
    ]
    return SeriesShapes(name, i, line, tuple(marks), tuple(bars), tuple(intervals))


def _bars(
    panel: Panel, name: str, points: Points, middles: Sequence[float], size: float, y: AxisScale
) -> Iterator[Mark]:
    zero = y.place(max(y.low, 0.0))
    for middle, (place, value) in zip(middles, points, strict=True):
        if value is not None:
            end = y.place(value)
            text = value_text(panel, name, place, value)
            yield Mark(
                round(middle - size / 2, 1), min(zero, end), text, round(size, 1), max(round(abs(end - zero), 1), 0.5)
            )


def _thinned(points: Points) -> Points:
    """Return no more points than a page can show, at equal distances, the last one among them."""
    step = -(-len(points) // _MOST_POINTS) or 1
    return points if step == 1 else [*points[:-1:step], points[-1]]


def _path(points: Points, x: AxisScale, y: AxisScale) -> str:
    """Return the path through points, with a gap where there is no value."""
    parts, pen = [], "M"
    for place, value in points:
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{x.place(place):g} {y.place(value):g}")
        pen = "L"
    return "".join(parts)


def value_text(panel: Panel, name: str, x: float, y: float) -> str:
    """Return a point in words: the series, or the label of the only one, with its values."""
    return f"{name}: {x_text(panel, x)}: {tick_text(y, percent='y' in panel.percent)}"


def x_text(panel: Panel, x: float) -> str:
    """Return the name of a place at the x axis: the text of its tick, or its value."""
    names = {place: " ".join(name.split("\n")) for place, name in panel.ticks}
    return names.get(x) or tick_text(x, percent="x" in panel.percent)
