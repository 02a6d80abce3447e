"""Plots of reports as PNG or SVG, with matplotlib, which is an extra (``plots``) and imported when it is needed.

Labels may hold any text of a user: `label` escapes and shortens it, and `save` chooses fonts that have its characters.
In SVG, text is drawn as outlines: the picture is the same where these fonts are missing.
"""

from __future__ import annotations

import importlib.util
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify
from sparsenmt.report.columns import width
from sparsenmt.report.fonts import FontChoice, fonts_for, without_remarks
from sparsenmt.report.plot_labels import label, shortened
from sparsenmt.storage.files import atomic_writer, explain_write_errors

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

SUFFIXES = (".png", ".svg")

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STROKES = ("-", "--", "-.", ":")
_HATCHES = ("", "//", "..", "xx", "--")
_DROPPED = "#C00000"
_CELL, _MARGIN, _LETTER = 0.28, 1.4, 0.075  # of a map, beside and below it, of its title, in inches
_BAR = 1.1  # a colour scale and its numbers, in inches
_TEXT, _COLUMN, _ROW = 88, 0.075, 0.24  # of a shaded text: columns of a line; width and height of one, in inches
_DPI, _MOST_PIXELS = 150, 30_000  # matplotlib draws no side of 65,536 pixels
_LONG_TICK, _LONG_NAME, _LONG_TITLE = 24, 36, 48
"""Columns of a tick's label, of a series and of a title; longer ones lose their middle."""
_LEAST_WIDTH, _LINE = 4.8, 0.2  # of a picture with a title, and a line of it, in inches


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
        x_range: ends of the x axis; None: those of the points. A histogram loses an empty half.
        y_range: ends of the y axis; None: those of the points.
        drawn: series that are drawn as lines in a diagram of points.
        intervals: name -> the ends of an interval for each point of the series; None: no interval.
        level: name and y of a line to compare with.
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
    intervals: Mapping[str, Sequence[tuple[float, float] | None]] = field(default_factory=dict)
    level: tuple[str, float] | None = None


def curves(panels: Sequence[Panel], *, share_y: bool = False) -> Figure:
    """Draw panels side by side; ``share_y``: with one y scale."""
    return panel_grid([panels], share_y=share_y)


def panel_grid(lines: Sequence[Sequence[Panel]], *, share_y: bool = False) -> Figure:
    """Draw equally long lines of panels, one below the other; ``share_y``: with one y scale for each line.

    Legends stand beside the panels: one for all of them if all have the same series.
    """
    legends = {tuple(_legend_names(panel)) for line in lines for panel in line if panel.series}
    together = len(legends) == 1
    names = [name for legend in legends for name in legend]
    beside = 0.35 + 0.085 * min(max(map(width, names)), _LONG_NAME) if names else 0.0
    places_beside = 1 if together else len(lines[0])
    across = sum(max(map(_width_of, column)) for column in zip(*lines, strict=True))
    figure = _figure(across + beside * places_beside, 4.0 * len(lines))
    places = figure.subplots(len(lines), len(lines[0]), squeeze=False, sharey="row" if share_y else False)
    shared: Mapping[str, Artist] = {}
    for line, axes in zip(lines, places, strict=True):
        for panel, axis in zip(line, axes, strict=True):
            drawn = _draw(panel, axis)
            shared = shared or drawn
            if drawn and not together:
                _add_legend(axis, drawn, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        for panel, axis in zip(line, axes, strict=True):  # all are drawn: a shared scale holds the points of all
            _set_y_limits(panel, axis)
    if together and shared:
        _add_legend(figure, shared, loc="outside right center")
    return figure


def _width_of(panel: Panel) -> float:
    """Return the width of a panel in inches: wider where there are many ticks."""
    return min(max(5.0, _width_of_ticks(panel) + 0.8), 9.0)


def _width_of_ticks(panel: Panel) -> float:
    """Return the inches that the labels of ticks at equal distances need."""
    columns = [max(width(shortened(line, _LONG_TICK)) for line in name.split("\n")) for _, name in panel.ticks]
    return max((a + b + 3 for a, b in pairwise(columns)), default=0) / 2 * len(columns) * 0.085


def _legend_names(panel: Panel) -> list[str]:
    """Return the entries of a panel's legend: none where the title names the only series."""
    names = list(panel.series)
    level = [panel.level[0]] if panel.level is not None else []
    return [*(names if len(names) > 1 else []), *level]


def _add_legend(parent: Axes | Figure, drawn: Mapping[str, Artist], **place: Any) -> None:
    # matplotlib leaves out names that begin with an underscore: they are written afterwards.
    legend = parent.legend(list(drawn.values()), ["-"] * len(drawn), frameon=False, fontsize="small", **place)
    for text, name in zip(legend.get_texts(), drawn, strict=True):
        text.set_text(label(name, _LONG_NAME))


def _draw(panel: Panel, axis: Axes) -> dict[str, Artist]:
    """Draw a panel; returns the entries of its legend."""
    from matplotlib.ticker import MaxNLocator

    axis.set_title(label(panel.title, _LONG_TITLE), fontsize="medium")
    if not panel.series:
        axis.set_axis_off()
        return {}
    found: dict[str, Artist] = {
        name: _draw_series(panel, axis, i, name, points) for i, (name, points) in enumerate(panel.series.items())
    }
    if panel.level is not None:
        name, height = panel.level
        found[name] = axis.axhline(height, color="black", linestyle="--", linewidth=1, label=name)
    if "x" in panel.percent:
        axis.xaxis.set_major_formatter(_percent)
        axis.set_xlim(left=left_end([x for points in panel.series.values() for x, _ in points]))
    if "y" in panel.percent:
        axis.yaxis.set_major_formatter(_percent)
    if panel.style == "steps" and "y" not in panel.percent:
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.x_range is not None:
        axis.set_xlim(*(panel.x_range if panel.style != "steps" else range_of_steps(panel)))
    if panel.ticks:
        _set_ticks(panel, axis)
    axis.set_xlabel(label(panel.x_label))
    axis.set_ylabel(label(panel.y_label))
    axis.grid(alpha=0.3, axis="y" if panel.style == "bars" else "both")
    axis.set_axisbelow(True)
    if panel.style == "bars":
        axis.axhline(0.0, color="black", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    return {name: found[name] for name in _legend_names(panel)}


def _set_y_limits(panel: Panel, axis: Axes) -> None:
    from_zero = (0.0, None) if "y" in panel.percent or panel.style == "steps" else None
    ends = panel.y_range or from_zero
    if panel.series and ends is not None:
        room = max(axis.get_ylim()[1], 1.05 * axis.dataLim.y1)  # for markers, where all values are far from 0
        axis.set_ylim(ends[0], room if ends[1] is None else ends[1])


def _set_ticks(panel: Panel, axis: Axes) -> None:
    names = [label(name, _LONG_TICK) for _, name in panel.ticks]
    axis.set_xticks([place for place, _ in panel.ticks], names, fontsize=9)
    if _width_of_ticks(panel) + 0.8 > _width_of(panel):
        for text in axis.get_xticklabels():
            text.set(rotation=30, ha="right", rotation_mode="anchor")


def left_end(values: Sequence[float]) -> float | None:
    """Return the left end of an axis of shares: 0, unless that leaves half of the axis empty."""
    known = [value for value in values if not math.isnan(value)]
    return None if known and min(known) > max(known) / 2 else 0.0


def range_of_steps(panel: Panel) -> tuple[float, float]:
    """Return the range of a histogram's axis, without an end that is empty if that is half of it."""
    low, high = panel.x_range or (0.0, 1.0)
    bins = [(x, end) for points in panel.series.values() for (x, y), (end, _) in pairwise(points) if y]
    if not bins:
        return low, high
    first, last = min(x for x, _ in bins), max(end for _, end in bins)
    middle = (low + high) / 2
    return (middle if first >= middle else low), (middle if last <= middle else high)


def _draw_series(panel: Panel, axis: Axes, i: int, name: str, points: Points) -> Artist:
    x = [point[0] for point in points]
    y = [np.nan if point[1] is None else point[1] for point in points]
    colour = _COLOURS[i % len(_COLOURS)]
    marker = _MARKERS[(i + i // len(_COLOURS)) % len(_MARKERS)]  # no two of 64 series look alike
    stroke = _STROKES[i % len(_STROKES)]
    look: dict[str, Any]
    if panel.style == "bars":
        size = 0.8 / len(panel.series)
        x = [place + (i + 0.5) * size - 0.4 for place in x]
        look = {"edgecolor": "white", "linewidth": 0.0, "hatch": _HATCHES[i % len(_HATCHES)]}
        bars = axis.bar(x, y, size, color=colour, label=name, **look)
        _draw_intervals(panel, axis, name, x, "black")
        return bars.patches[0]
    # Where series lie upon one another, the first is the widest.
    above = max(1.0 - i / 8, 0.4)
    if panel.style == "steps":
        (line,) = axis.step(x, y, where="post", color=colour, linewidth=3 * above, linestyle=stroke, label=name)
    elif panel.style == "lines" or name in panel.drawn:
        (line,) = axis.plot(x, y, color=colour, linewidth=1, linestyle=stroke, alpha=0.8, label=name)
    elif panel.style == "points":
        seen = 0.5 if i == 0 and panel.drawn else 1.0  # the points of the first series overlap
        look = {"marker": marker, "markersize": 4 + i if panel.drawn else 8, "alpha": seen, "clip_on": False}
        (line,) = axis.plot(x, y, color=colour, linestyle="none", label=name, **look)
    else:
        look = {"marker": marker, "markersize": 9 * above, "linestyle": stroke, "clip_on": False}
        (line,) = axis.plot(x, y, color=colour, label=name, **look)
    _draw_intervals(panel, axis, name, x, colour)
    return line


def _draw_intervals(panel: Panel, axis: Axes, name: str, x: Sequence[float], colour: str) -> None:
    for place, ends in zip(x, panel.intervals.get(name, ()), strict=False):
        if ends is not None:
            axis.plot([place, place], ends, color=colour, linewidth=1.2, marker="_", markersize=6, label="_interval")


def _percent(value: float, _place: float) -> str:
    return f"{value * 100:.6g}%"


@dataclass(frozen=True)
class Heatmap:
    """A matrix of attention with the names of its rows and columns.

    Args:
        weights: (T, S).
        dropped: True for columns whose names are marked.
        percent: True: the values stand in the cells, in percent.
        row_label, column_label: names of the axes.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    weights: NDArray[np.float64]
    dropped: Sequence[bool]
    percent: bool = False
    row_label: str = ""
    column_label: str = ""


def heatmaps(grid: Sequence[Sequence[Heatmap]], scale: str = "weight", *, most: float | None = None) -> Figure:
    """Draw lines of maps with one scale: darker is more, only 0 is white; dropped columns: red names in brackets.

    Args:
        scale: the name of the scale of colours, which is in percent and says what white means.
        most: the value of the darkest colour; None: the largest value of all maps.
    """
    heights = [max(1, *(len(each.rows) for each in line)) for line in grid]
    widths = [max(map(_columns_of, column)) for column in zip(*grid, strict=True)]
    across = sum(widths) * _CELL + _MARGIN * len(widths) + _BAR
    figure = _figure(across, max(sum(heights) * _CELL + _MARGIN * len(heights), 2.2))
    axes = figure.subplots(len(grid), len(widths), squeeze=False, width_ratios=widths, height_ratios=heights)
    values = [float(np.nanmax(each.weights, initial=0.0)) for line in grid for each in line]
    end = most or max(*values, 1e-6)
    for line, places in zip(grid, axes, strict=True):
        for each, axis in zip(line, places, strict=True):
            image = _draw_map(each, axis, end)
    _add_scale(figure, image, axes, f"{scale} (white: exactly 0)", _percent)
    return figure


def _draw_map(each: Heatmap, axis: Axes, most: float) -> AxesImage:
    weights = each.weights if each.weights.size else np.zeros((1, len(each.columns)))
    shown = np.ma.masked_equal(weights, 0.0)
    image = axis.imshow(shown, cmap=_scale(), vmin=0.0, vmax=most, aspect="auto", interpolation="nearest")
    short = [shortened(name, _LONG_TICK) for name in each.columns]
    names = [f"[{name}]" if gone else name for name, gone in zip(short, each.dropped, strict=True)]
    _name_cells(axis, each, [label(name) for name in names], size=8, rotation=90)
    if each.percent:
        _write_values(axis, each.weights * 100, ".0f", dark=0.6 * most * 100, size=6)
    for text, dropped in zip(axis.get_xticklabels(), each.dropped, strict=True):
        if dropped:
            text.set_color(_DROPPED)
    return image


def _add_scale(figure: Figure, image: AxesImage, axes: Any, name: str, form: Any) -> None:
    """Add the scale of colours with its numbers, no longer than three inches."""
    long = min(1.0, 3.0 / float(figure.get_size_inches()[1]))
    bar = figure.colorbar(image, ax=axes, label=label(name), format=form, shrink=long, anchor=(0.0, 1.0), aspect=15)
    bar.outline.set_visible(False)


@dataclass(frozen=True)
class ShadedText:
    """A text whose tokens have values from 0 to 1.

    Args:
        tokens: a space begins those before which a word ends.
        values: (S,), one for each token.
    """

    title: str
    tokens: Sequence[str]
    values: NDArray[np.float64]


def shaded_texts(texts: Sequence[ShadedText], name: str) -> Figure:
    """Draw texts, one below the other, with the scale of the values, ``name``, as the last one.

    The box of a token is the darker, the larger its value; one of exactly 0 is white, and its token red in brackets.
    """
    from matplotlib.patches import Rectangle

    ends = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    scale = ShadedText(f"{name} (white, in brackets: exactly 0)", [f" {end:g}" for end in ends], ends)
    passages = [(each.title, _boxes(each)) for each in (*texts, scale)]
    rows = sum(1 + len(lines) for _, lines in passages)
    figure = _figure(_TEXT * _COLUMN + 0.2, rows * _ROW + 0.2)
    axis = figure.subplots()
    axis.set(xlim=(0, _TEXT), ylim=(rows, 0))
    axis.set_axis_off()
    y = 0
    for title, lines in passages:
        axis.text(0, y + 0.6, label(title, _TEXT), va="center", fontsize=9)
        for line in lines:
            y += 1
            for x, token, value in line:
                size, colour = width(token) + 1, _scale()(0.5 * value) if value > 0 else "white"
                box = Rectangle((x, y + 0.08), size, 0.84, facecolor=colour, edgecolor="#BBBBBB", linewidth=0.5)
                axis.add_patch(box)
                look: dict[str, Any] = {"ha": "center", "va": "center", "color": "black" if value > 0 else _DROPPED}
                axis.text(x + size / 2, y + 0.5, label(token), fontsize=9, **look)
        y += 1
    return figure


def _boxes(text: ShadedText) -> list[list[tuple[float, str, float]]]:
    """Return the lines of a text: column, token and value of every box."""
    lines: list[list[tuple[float, str, float]]] = [[]]
    place = 0.0
    for token, value in zip(text.tokens, text.values.tolist(), strict=True):
        apart, shown = token.startswith(" "), shortened(token.removeprefix(" "), _LONG_TICK)
        shown = shown if value > 0 else f"[{shown}]"
        place += apart * bool(lines[-1])
        if lines[-1] and place + width(shown) + 1 > _TEXT:
            lines.append([])
            place = 0.0
        lines[-1].append((place, shown, value))
        place += width(shown) + 1
    return lines


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
    """Draw equally long lines of maps, each with its scale: darker is more, an empty cell is white."""
    widest = max(len(each.columns) for line in grid for each in line)
    tallest = max(len(each.rows) for line in grid for each in line)
    size = (max(0.62 * widest, 1.6) + 1.0 + _BAR) * len(grid[0]), (0.42 * tallest + 1.2) * len(grid)
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
    image = axis.imshow(
        each.values, cmap=_scale(), vmin=least, vmax=least + span, aspect="auto", interpolation="nearest"
    )
    _name_cells(axis, each, [label(name, _LONG_TICK) for name in each.columns], size=9)
    figure = axis.get_figure(root=True)
    assert figure is not None
    _add_scale(figure, image, axis, "", lambda value, _: format(value, each.form))
    _write_values(axis, each.values, each.form, dark=least + 0.6 * span, size=8)


def _name_cells(axis: Axes, each: Heatmap | ValueMap, columns: Sequence[str], *, size: int, rotation: int = 0) -> None:
    """Write the names of rows and columns, of the axes and of the map."""
    axis.set_xticks(range(len(columns)), columns, rotation=rotation, fontsize=size)
    axis.set_yticks(range(len(each.rows)), [label(name, _LONG_TICK) for name in each.rows], fontsize=size)
    axis.set_xlabel(label(each.column_label), fontsize=size)
    axis.set_ylabel(label(each.row_label), fontsize=size)
    axis.set_title(label(each.title, _LONG_TITLE), fontsize=9)
    axis.tick_params(length=0)


def _write_values(axis: Axes, values: NDArray[np.float64], form: str, *, dark: float, size: int) -> None:
    """Write numbers into the cells, white above ``dark``; NaN leaves a cell empty."""
    for row, column in np.argwhere(~np.isnan(values)).tolist():
        value = values[row, column]
        colour = "white" if value > dark else "black"
        axis.text(column, row, format(value, form), ha="center", va="center", fontsize=size, color=colour)


def _scale() -> Colormap:
    """Return a scale from pale to dark blue, with white for what is masked."""
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("weights", ["#DEEBF7", "#6BAED6", "#08306B"])
    return scale.with_extremes(bad="white")


def _columns_of(each: Heatmap) -> int:
    """Return the width of a map in columns: its own, or the width of its title."""
    letters = max(min(width(line), _LONG_TITLE) for line in each.title.split("\n"))
    return max(1, len(each.columns), math.ceil((letters * _LETTER - _MARGIN) / _CELL))


def describe(figure: Figure, title: str, *, caption: str = "") -> Figure:
    """Write a title above the whole picture, and a caption below it; lines are broken where the picture ends."""
    across, high = figure.get_size_inches()
    across = max(float(across), _LEAST_WIDTH)
    above = [part for line in title.split("\n") for part in _broken(line, round(across * 12))]
    below = _broken(caption, round(across * 14))
    figure.set_size_inches(across, high + _LINE * (len(above) + len(below)))
    figure.suptitle(label("\n".join(above)), fontsize=10)
    if below:
        figure.supxlabel(label("\n".join(below)), fontsize=8)
    return figure


def _broken(line: str, columns: int) -> list[str]:
    return [shortened(part, columns) for part in textwrap.wrap(line, columns, break_long_words=False)]


def save(figure: Figure, path: Path) -> None:
    """Write a figure, complete or not at all.

    Raises:
        UserError: the place cannot be written.
    """
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    # The same figure gives the same bytes: no date, no random ids.
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    settings: dict[Any, Any] = {"svg.hashsalt": "sparsenmt", "svg.fonttype": "path", "text.usetex": False}
    choice = _set_fonts(figure)
    with (
        matplotlib.rc_context(settings),
        without_remarks() as unseen,
        explain_write_errors(path),
        atomic_writer(path) as stream,
    ):
        dpi = min(_DPI, _MOST_PIXELS / max(figure.get_size_inches()))
        figure.savefig(stream, format=kind, dpi=dpi, metadata=metadata)
    # A letter is drawn with the marks on it: without a font for the marks, matplotlib misses the letter, too.
    message = replace(choice, missing=choice.missing or "".join(sorted(unseen))).message(str(path))
    if message is not None:
        notify(message)


def _set_fonts(figure: Figure) -> FontChoice:
    """Give all texts of a figure the fonts that they need."""
    from matplotlib.text import Text

    texts: list[Any] = [text for text in figure.findobj(Text) if not text.get_text().isascii()]
    choice = fonts_for(text.get_text() for text in texts)
    for text in texts:
        own = text.get_fontfamily()
        text.set_fontfamily([*own, *(name for name in choice.families if name not in own)])
    return choice


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
