"""Plots of reports as PNG or SVG, with matplotlib, which is an extra (``plots``) and imported when it is needed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError
from sparsenmt.files import atomic_writer, explain_write_errors

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_CROWDED = 5
"""More series than this have their legend beside the diagram."""
_DROPPED = "#C00000"
_CELL, _MARGIN, _LETTER = 0.28, 1.4, 0.075  # of a map, beside and below it, of its title, in inches
_NOTHING = 1e-9  # smaller weights are drawn as 0
_DPI, _MOST_PIXELS = 150, 30_000  # matplotlib draws no side of 65,536 pixels


def check_plot(path: Path) -> None:
    """Raise UserError if the name does not end in .png or .svg, or matplotlib is not installed."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            "a plot is written as PNG or SVG", where=str(path), hint="Let the name end in `.png` or in `.svg`."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            "matplotlib is not installed",
            where="--plot",
            hint="Install the extra: `pip install 'sparsenmt[plots]'`; the table, --json and --csv do not need it.",
        )


Points = Sequence[tuple[float, float | None]]
"""(x, y) of points, in the order of drawing; a y of None leaves a gap."""


@dataclass(frozen=True)
class Panel:
    """One diagram: named series of points.

    Args:
        series: name -> points.
        percent: axes whose values are shares: "x", "y", "xy" or "".
        style: curves with markers; thin lines; points; the outline of a histogram, x being the left edges of bins; or
            bars side by side.
        ticks: (x, label) of the ticks; empty: those of a scale.
        x_range: ends of the x axis; None: those of the points.
        y_range: ends of the y axis; None: those of the points.
        drawn: series that are drawn as lines in a diagram of points.
    """

    x_label: str
    y_label: str
    series: Mapping[str, Points]
    title: str = ""
    percent: str = ""
    style: Literal["curves", "lines", "points", "steps", "bars"] = "curves"
    ticks: Sequence[tuple[float, str]] = field(default_factory=tuple)
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float | None] | None = None
    drawn: Sequence[str] = ()


def curves(panels: Sequence[Panel], *, share_y: bool = False) -> Figure:
    """Draw panels side by side; ``share_y``: with one y scale."""
    return panel_grid([panels], share_y=share_y)


def panel_grid(lines: Sequence[Sequence[Panel]], *, share_y: bool = False) -> Figure:
    """Draw equally long lines of panels, one below the other; ``share_y``: with one y scale for each line."""
    figure = _figure(5.6 * len(lines[0]), 4.0 * len(lines))
    places = figure.subplots(len(lines), len(lines[0]), squeeze=False, sharey="row" if share_y else False)
    for line, axes in zip(lines, places, strict=True):
        for panel, axis in zip(line, axes, strict=True):
            _draw(panel, axis)
    return figure


def _draw(panel: Panel, axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    if not panel.series:
        axis.set_axis_off()
        axis.set_title(panel.title)
        return
    for i, (name, points) in enumerate(panel.series.items()):
        _draw_series(panel, axis, i, name, points)
    if "x" in panel.percent:
        axis.xaxis.set_major_formatter(_percent)
        axis.set_xlim(left=0)
    if "y" in panel.percent:
        axis.yaxis.set_major_formatter(_percent)
        axis.set_ylim(bottom=0)
    if panel.style == "steps" and "y" not in panel.percent:
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_ylim(bottom=0)
    if panel.x_range is not None:
        axis.set_xlim(*panel.x_range)
    if panel.y_range is not None:
        axis.set_ylim(*panel.y_range)
    if panel.ticks:
        axis.set_xticks([tick[0] for tick in panel.ticks], [tick[1] for tick in panel.ticks])
        if max(len(tick[1]) for tick in panel.ticks) > 5:
            for label in axis.get_xticklabels():
                label.set(rotation=30, ha="right", rotation_mode="anchor")
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.set_title(panel.title)
    axis.grid(alpha=0.3, axis="y" if panel.style == "bars" else "both")
    axis.set_axisbelow(True)
    if panel.style == "bars":
        axis.axhline(0.0, color="black", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    if len(panel.series) > 1 or panel.style == "steps":
        if len(panel.series) > _CROWDED or panel.style in ("bars", "lines"):  # these fill the diagram
            axis.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
        else:
            axis.legend(frameon=False, fontsize="small", loc="best")


def _draw_series(panel: Panel, axis: Axes, i: int, name: str, points: Points) -> None:
    x = [point[0] for point in points]
    y = [np.nan if point[1] is None else point[1] for point in points]
    colour = _COLOURS[i % len(_COLOURS)]
    marker = _MARKERS[(i + i // len(_COLOURS)) % len(_MARKERS)]  # no two of 64 series look alike
    if panel.style == "steps":
        axis.step(x, y, where="post", color=colour, label=name)
    elif panel.style == "bars":
        width = 0.8 / len(panel.series)
        axis.bar([place + (i + 0.5) * width - 0.4 for place in x], y, width, color=colour, label=name)
    elif panel.style == "lines" or name in panel.drawn:
        axis.plot(x, y, color=colour, linewidth=1, alpha=0.8, label=name)
    elif panel.style == "points":
        seen = 0.5 if i == 0 else 1.0  # the points of the first series overlap
        axis.plot(x, y, color=colour, marker=marker, markersize=4 + i, linestyle="none", alpha=seen, label=name)
    else:
        axis.plot(x, y, color=colour, marker=marker, markersize=5, label=name)


def _percent(value: float, _place: float) -> str:
    return f"{value * 100:.6g}%"


@dataclass(frozen=True)
class Heatmap:
    """A matrix of attention with the names of its rows and columns.

    Args:
        weights: (T, S).
        dropped: True for columns whose names are marked.
        most: the value of the darkest colour; None: the largest value.
        percent: True: the values stand in the cells, in percent.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    weights: NDArray[np.float64]
    dropped: Sequence[bool]
    most: float | None = None
    percent: bool = False


def heatmaps(grid: Sequence[Sequence[Heatmap]]) -> Figure:
    """Draw lines of maps: darker is more, white is exactly 0; the names of dropped columns are red, in brackets."""
    colours = _scale()
    heights = [max(1, *(len(each.rows) for each in line)) for line in grid]
    widths = [max(map(_columns_of, column)) for column in zip(*grid, strict=True)]
    figure = _figure(sum(widths) * _CELL + _MARGIN * len(widths), sum(heights) * _CELL + _MARGIN * len(heights))
    axes = figure.subplots(len(grid), len(widths), squeeze=False, width_ratios=widths, height_ratios=heights)
    for line, places in zip(grid, axes, strict=True):
        for each, axis in zip(line, places, strict=True):
            most = each.most or max(float(each.weights.max(initial=0.0)), 1e-6)
            weights = each.weights if each.weights.size else np.zeros((1, len(each.columns)))
            axis.imshow(weights, cmap=colours, vmin=_NOTHING, vmax=most, aspect="auto", interpolation="nearest")
            names = [f"[{name}]" if gone else name for name, gone in zip(each.columns, each.dropped, strict=True)]
            axis.set_xticks(range(len(names)), _literal(names), rotation=90, fontsize=8)
            axis.set_yticks(range(len(each.rows)), _literal(each.rows), fontsize=8)
            axis.set_title(each.title, fontsize=9)
            axis.tick_params(length=0)
            if each.percent:
                _write_values(axis, each.weights * 100, ".0f", dark=0.6 * most * 100, size=6)
            for label, dropped in zip(axis.get_xticklabels(), each.dropped, strict=True):
                if dropped:
                    label.set_color(_DROPPED)
    return figure


@dataclass(frozen=True)
class ValueMap:
    """A matrix of numbers, which stand in its cells, on a scale of colours.

    Args:
        values: (rows, columns); NaN for an empty cell.
        form: format specification of the numbers.
        ends: ends of the colour scale; None: the least and the largest value.
    """

    title: str
    row_label: str
    rows: Sequence[str]
    column_label: str
    columns: Sequence[str]
    values: NDArray[np.float64]
    form: str = ".1f"
    ends: tuple[float, float] | None = None


def value_maps(grid: Sequence[Sequence[ValueMap]]) -> Figure:
    """Draw equally long lines of maps: darker is more, an empty cell is white."""
    widest = max(len(each.columns) for line in grid for each in line)
    tallest = max(len(each.rows) for line in grid for each in line)
    size = (0.62 * widest + 1.6) * len(grid[0]), (0.42 * tallest + 1.2) * len(grid)
    figure = _figure(*size)
    places = figure.subplots(len(grid), len(grid[0]), squeeze=False)
    for line, axes in zip(grid, places, strict=True):
        for each, axis in zip(line, axes, strict=True):
            _draw_values(each, axis)
    return figure


def _draw_values(each: ValueMap, axis: Axes) -> None:
    known = each.values[~np.isnan(each.values)]
    least, most = each.ends or ((known.min(), known.max()) if known.size else (0.0, 1.0))
    span = max(float(most - least), 1e-9)
    axis.imshow(each.values, cmap=_scale(), vmin=least, vmax=least + span, aspect="auto", interpolation="nearest")
    axis.set_xticks(range(len(each.columns)), _literal(each.columns), fontsize=9)
    axis.set_yticks(range(len(each.rows)), _literal(each.rows), fontsize=9)
    axis.set_xlabel(each.column_label, fontsize=9)
    axis.set_ylabel(each.row_label, fontsize=9)
    axis.set_title(each.title.replace("$", r"\$"), fontsize=9)
    axis.tick_params(length=0)
    _write_values(axis, each.values, each.form, dark=least + 0.6 * span, size=8)


def _write_values(axis: Axes, values: NDArray[np.float64], form: str, *, dark: float, size: int) -> None:
    """Write numbers into the cells, white above ``dark``; NaN leaves a cell empty."""
    for row, column in np.argwhere(~np.isnan(values)).tolist():
        value = values[row, column]
        colour = "white" if value > dark else "black"
        axis.text(column, row, format(value, form), ha="center", va="center", fontsize=size, color=colour)


def _scale() -> Colormap:
    """Return a scale from pale to dark blue, with white below it."""
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("weights", ["#DEEBF7", "#6BAED6", "#08306B"])
    return scale.with_extremes(under="white", bad="white")


def _columns_of(each: Heatmap) -> int:
    """Return the width of a map in columns: its own, or the width of its title."""
    letters = max(map(len, each.title.split("\n")))
    return max(1, len(each.columns), math.ceil((letters * _LETTER - _MARGIN) / _CELL))


def save(figure: Figure, path: Path) -> None:
    """Write a figure, complete or not at all.

    Raises:
        UserError: the place cannot be written.
    """
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    # The same figure gives the same bytes: no date, no random ids.
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    with (
        matplotlib.rc_context({"svg.hashsalt": "sparsenmt"}),
        explain_write_errors(path),
        atomic_writer(path) as stream,
    ):
        dpi = min(_DPI, _MOST_PIXELS / max(figure.get_size_inches()))
        figure.savefig(stream, format=kind, dpi=dpi, metadata=metadata)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _literal(names: Sequence[str]) -> list[str]:
    """Escape dollar signs, which matplotlib would read as mathematics."""
    return [name.replace("$", r"\$") for name in names]
