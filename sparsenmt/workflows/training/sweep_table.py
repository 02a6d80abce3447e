"""The layout of a sweep's measurements: text for the terminal, diagrams, and rows for CSV and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, stdev

from sparsenmt.evaluation.observation import (
    BY_SEED,
    SCATTER,
    SEEDS_NOTE,
    Labels,
    Observation,
    seed_count,
    seed_means,
    seeds_table,
    signature_notes,
)
from sparsenmt.evaluation.significance import LEVEL, PairedTest
from sparsenmt.metric import TEXT_METRICS, metric_label
from sparsenmt.recipe.sweep import CellValue, Layout, axes_of
from sparsenmt.report.columns import aligned
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Kind, Report, Table, Value, columns, shown_if

_NONE, _WAITING = "-", "..."
_MARKS = "*+~"
_SHARES = ("sparsity", "density")
_LENGTHS = ("attended", "fewer_attended", "mean_span", "longest_span")
_BESIDE = ("sparsity", "mean_span", "longest_span", "training_speed")
"""Values in columns of their own, in a table whose columns the file does not name."""
_TITLES = {
    "parameters": "parameters",
    "sparsity": "sparsity rate",
    "attended": "attended positions a query",
    "fewer_attended": "times fewer attended positions than the baseline",
    "density": "density of attention",
    "mean_span": "mean span of the heads",
    "longest_span": "longest span of a head",
    "training_speed": "target tokens/s in training",
    "training_seconds": "seconds of training",
}


@dataclass(frozen=True)
class LaidOutTable:
    """One table: header lines above lines of cells, all of the same number of columns."""

    title: str
    heads: list[list[str]]
    rows: list[list[str]]
    names: int
    """Number of columns that name the rows."""

    def __str__(self) -> str:
        lines = aligned([*self.heads, *self.rows], flush_right=range(self.names, len(self.heads[0])))
        rule = "-" * max(map(len, lines))
        above = len(self.heads)
        return "\n".join(filter(None, [self.title, *lines[:above], rule, *lines[above:]]))


class _Placement:
    """The observations of a sweep in the sections, rows and columns of a layout; ``cell``: the value in the cells."""

    def __init__(self, layout: Layout, observations: Sequence[Observation], cell: CellValue) -> None:
        self.layout, self.cell = layout, cell
        self.row_axes, self.column_axes = axes_of(layout.rows), layout.column_axes
        self.section_axes = axes_of(layout.sections)
        used = {*self.row_axes, *self.column_axes, *self.section_axes}
        # An axis that the table does not use is shown for its first label: the most important metric, the first set.
        fixed = {axis: _order(observations, (axis,))[0][0] for axis in ("set", "metric") if observations}
        self.fixed = {axis: label for axis, label in fixed.items() if axis not in used}
        self.seeds, self.means = 1 if "seed" in used else seed_count(observations), seed_means(observations)
        kept = [each for each in observations if all(each.labels[axis] == self.fixed[axis] for axis in self.fixed)]
        # Bits per character differ in the third decimal.
        self.digits = 3 if any(each.labels["metric"] in TEXT_METRICS for each in kept) else 2
        self.sections = _order(kept, self.section_axes)
        self._rows, self._columns = _order(kept, self.row_axes), _order(kept, self.column_axes)
        self._found: dict[tuple[Labels, ...], list[Observation]] = {}
        for each in kept:
            place = tuple(_labels(each, axes) for axes in (self.section_axes, self.row_axes, self.column_axes))
            self._found.setdefault(place, []).append(each)

    def at(self, section: Labels, row: Labels, column: Labels) -> list[Observation]:
        """Return the observations of a cell, one for each seed."""
        return self._found.get((section, row, column), [])

    def numbers(self, section: Labels, row: Labels, column: Labels, name: str | None = None) -> list[float]:
        """Return the values of a cell, or others by ``name``, one for each seed that is finished."""
        values = [each.values.get(name or self.cell) for each in self.at(section, row, column)]
        return [value for value in values if value is not None]

    def rows_of(self, section: Labels) -> list[Labels]:
        """Return the rows that have an observation in a section."""
        return [row for row in self._rows if any(self.at(section, row, column) for column in self._columns)]

    def columns_of(self, section: Labels) -> list[Labels]:
        """Return the columns that have an observation in a section."""
        return [column for column in self._columns if any(self.at(section, row, column) for row in self._rows)]

    @property
    def cell_title(self) -> str:
        """The name of the values in the cells."""
        if self.cell != "quality":
            return _TITLES[self.cell]
        axes = [axis for axis in ("metric", "set") if axis in self.fixed]
        return ", ".join(_shown(axes, [self.fixed[axis] for axis in axes]))


def grids(layout: Layout, observations: Sequence[Observation]) -> list[LaidOutTable]:
    """Return the tables, for each section one for each kind of value in the cells."""
    placed = [_Placement(layout, observations, cell) for cell in layout.cells]
    found = []
    for section, cells in product(placed[0].sections, placed):
        columns, rows = cells.columns_of(section), cells.rows_of(section)
        body = [[_cell(cells, section, row, column) for column in columns] for row in rows]
        widest = max((len(text) - len(text.rstrip(_MARKS)) for line in body for text in line), default=0)
        body = [[text + " " * (widest - len(text) + len(text.rstrip(_MARKS))) for text in line] for line in body]
        if layout.average:
            body = [[*line, _average(cells, section, row)] for line, row in zip(body, rows, strict=True)]
        measured = _measured(cells, section, rows) if layout.adds_measured else {}
        body = [[*line, *(texts[i] for texts in measured.values())] for i, line in enumerate(body)]
        found.append(
            LaidOutTable(
                title=" | ".join(filter(None, [", ".join(_shown(cells.section_axes, section)), cells.cell_title])),
                heads=_heads(cells, columns, measured, marks=widest),
                rows=[[*head, *line] for head, line in zip(_row_heads(cells, rows), body, strict=True)],
                names=len(cells.row_axes),
            )
        )
        found += _differences(cells, section, rows, columns)
    return found


def _differences(
    cells: _Placement, section: Labels, rows: Sequence[Labels], columns: Sequence[Labels]
) -> list[LaidOutTable]:
    """Return the table of differences to the baseline, paired by seed, with their 95% intervals; none: no table."""
    body = [[_difference(cells, section, row, column) for column in columns] for row in rows]
    shown = [place for place, line in enumerate(body) if any(text != _NONE for text in line)]
    if cells.cell != "quality" or not shown:
        return []
    names, average = _row_heads(cells, [rows[place] for place in shown]), [_NONE] * cells.layout.average
    title = ", ".join(_shown(cells.section_axes, section))
    return [
        LaidOutTable(
            title=" | ".join(filter(None, [title, f"{cells.cell_title}: difference, paired by seed"])),
            heads=_heads(cells, columns, {}, marks=0),
            rows=[[*head, *body[place], *average] for head, place in zip(names, shown, strict=True)],
            names=len(cells.row_axes),
        )
    ]


def _difference(cells: _Placement, section: Labels, row: Labels, column: Labels) -> str:
    """Return the mean difference to the baseline of the same seed and its interval; `_NONE`: fewer than two seeds."""
    there = cells.at(section, row, column)
    means = cells.means.get(there[0].place) if there and cells.seeds > 1 else None
    if means is None or means.paired is None:
        return _NONE
    ends = (means.paired.difference, means.paired.low, means.paired.high)
    difference, low, high = (f"{value:+.{cells.digits}f}" for value in ends)
    return f"{difference} [{low}, {high}]"


def _measured(cells: _Placement, section: Labels, rows: Sequence[Labels]) -> dict[str, list[str]]:
    """Return title -> texts of the rows, of columns beside the quality: means of the values that were measured."""
    found: dict[str, list[str]] = {}
    for name in _BESIDE:
        values = [
            [value for column in cells.columns_of(section) for value in cells.numbers(section, row, column, name)]
            for row in rows
        ]
        if any(values):
            found[_TITLES[name]] = [_number(mean(own), name) if own else _NONE for own in values]
    return found


def _heads(cells: _Placement, columns: Sequence[Labels], measured: Iterable[str], *, marks: int) -> list[list[str]]:
    """Return the header, a line for each column axis; repeated labels are left empty.

    Args:
        measured: titles of columns beside the cells.
        marks: columns of text that the marks in the cells take.
    """
    lines = []
    names = [_shown(cells.column_axes, column) for column in columns]
    depth = len(names[0]) if names else 1
    for level in range(depth):
        line = []
        for number, name in enumerate(names):
            before = names[number - 1][: level + 1] if number and level + 1 < depth else None
            line.append("" if before == name[: level + 1] else name[level] + " " * marks)
        first = list(cells.row_axes) if level == depth - 1 else [""] * len(cells.row_axes)
        average = ["AVG" if level == depth - 1 else ""] if cells.layout.average else []
        beside = [title if level == depth - 1 else "" for title in measured]
        lines.append([*first, *line, *average, *beside])
    return lines


def _row_heads(cells: _Placement, rows: Sequence[Labels]) -> list[list[str]]:
    """Return the names of the rows; repeated labels of all but the last axis are left empty."""
    names = [_shown(cells.row_axes, row) for row in rows]
    before = [None, *names]
    return [
        [
            "" if last is not None and last[: i + 1] == name[: i + 1] and i + 1 < len(name) else part
            for i, part in enumerate(name)
        ]
        for last, name in zip(before, names, strict=False)
    ]


def _cell(cells: _Placement, section: Labels, row: Labels, column: Labels) -> str:
    """Return the text of a cell: the mean over its seeds, with deviation and marks; or `_NONE` or `_WAITING`."""
    there, numbers = cells.at(section, row, column), cells.numbers(section, row, column)
    if not there:
        return _NONE
    if not numbers:
        return _NONE if any(each.values for each in there) else _WAITING
    text, cell, first = _number(mean(numbers), cells.cell, cells.digits), cells.cell, there[0]
    if len(numbers) > 1:
        text += f"±{_number(stdev(numbers), cell, cells.digits)}"
    if 1 < cells.seeds != len(numbers):
        text += f" ({len(numbers)})"
    if cell != "quality":
        return text
    if len(there) == 1:
        return text + first.mark
    means = cells.means[first.place]
    return text + "~" * bool(means.within_scatter) + means.mark


def _average(cells: _Placement, section: Labels, row: Labels) -> str:
    """Return the mean of a row's cells as text."""
    means = [mean(found) for column in cells.columns_of(section) if (found := cells.numbers(section, row, column))]
    return _number(mean(means), cells.cell, cells.digits) if len(means) > 1 else _NONE


def _number(value: float, cell: str, digits: int = 2) -> str:
    """Return a value as text; ``digits``: decimals of the quality."""
    if cell in _SHARES:
        return f"{value:.1%}"
    if cell in ("parameters", "training_speed", "training_seconds"):
        return f"{value:,.0f}"
    return f"{value:.1f}" if cell in _LENGTHS else f"{value:.{digits}f}"


def _order(observations: Sequence[Observation], axes: Sequence[str]) -> list[Labels]:
    """Return all combinations of labels on these axes, in the order of the sweep."""
    return list(dict.fromkeys(_labels(each, axes) for each in observations))


def _labels(observation: Observation, axes: Sequence[str]) -> Labels:
    """Return the labels of an observation on these axes; empty where it has none."""
    return tuple(observation.labels.get(axis, "") for axis in axes)


def _shown(axes: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return labels as tables show them: metrics have names of their own."""
    pairs = zip(axes, labels, strict=True)
    return [metric_label(label) if axis == "metric" else label for axis, label in pairs]


def notes(layout: Layout | None, observations: Sequence[Observation], test: PairedTest) -> list[str]:
    """Return the legend: the baseline, the seeds, and the variants that are not finished."""
    found = []
    tested = [each for each in observations if each.test is not None]
    cells = None if layout is None else _Placement(layout, observations, layout.cells[0])
    seeds = seed_count(observations) if cells is None else cells.seeds
    used = test.describe(int(each.test["segments"]) for each in tested if each.test)
    if layout is None and tested:
        of_seed = " of the seed" * (seeds > 1)
        found.append(f"difference, p value: against the first variant{of_seed}, {used}")
    elif layout is not None and tested:
        against = ", ".join(f"{axis} {label}" for axis, label in layout.baseline.items())
        alone = Counter(each.place for each in observations)
        if any(seeds == 1 or alone[each.place] == 1 for each in tested):
            where = ", in cells of one seed" * (seeds > 1)
            found.append(f"* significantly worse than {against}, + better{where}: p < {LEVEL:g}, {used}")
        if seeds > 1:
            found.append(f"~ difference from {against} {SCATTER}")
            found.append(f"* worse, + better, in cells of several seeds: p < {LEVEL:g}; [95% interval]: {BY_SEED}")
    if seeds > 1:
        fewer = "; (n): over n of them" * any(len(each.values) != seeds for each in seed_means(observations).values())
        found.append(SEEDS_NOTE if layout is None else f"mean ± sample standard deviation over {seeds} seeds{fewer}")
    found += signature_notes(observations)
    waiting = {each.variant for each in observations if not each.values}
    if waiting:
        found.append(f"{_WAITING} {len(waiting)} variant{'' if len(waiting) == 1 else 's'} to come")
    return found


def panels(layout: Layout, observations: Sequence[Observation]) -> list[Panel]:
    """Return a diagram for each section, a series for each row: curves if the columns are numbers, otherwise bars."""
    first = _order(observations, ("metric",))[:1]
    if any(name in TEXT_METRICS for (name,) in first):  # bits and perplexities have no axis in common
        observations = [each for each in observations if (each.labels["metric"],) in first]
    cells = _Placement(layout, observations, layout.cells[0])
    found = []
    for section in cells.sections:
        columns = cells.columns_of(section)
        labels = [" ".join(_shown(cells.column_axes, column)) for column in columns]
        series: dict[str, list[tuple[float, float | None]]] = {}
        for row in cells.rows_of(section):
            points = [cells.numbers(section, row, column) for column in columns]
            series[" ".join(_shown(cells.row_axes, row))] = [
                (float(x), mean(numbers) if numbers else None) for x, numbers in enumerate(points)
            ]
        values = [y for points in series.values() for _, y in points if y is not None]
        if not values:
            continue
        numeric = sum(label.replace(".", "").isdecimal() for label in labels) >= max(len(labels) - 1, 2)
        zoom = None if numeric else _zoomed(values)
        found.append(
            Panel(
                ", ".join(layout.column_axes),
                cells.cell_title
                + (f"\naxis from {_number(zoom[0], cells.cell, cells.digits)}, not from 0" if zoom and zoom[0] else ""),
                series,
                title=", ".join(_shown(cells.section_axes, section)),
                percent="y" if cells.cell in _SHARES else "",
                style="curves" if numeric else "bars",
                ticks=[(float(x), label) for x, label in enumerate(labels)],
                y_range=zoom,
            )
        )
    return found


def _zoomed(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis on which bars differ visibly: from 0, unless that leaves half of the axis alike."""
    low, high = min(values), max(values)
    spread = max(high - low, abs(high) * 0.02, 1e-9)
    return (low - spread if low - spread > high / 2 else 0.0, high + 0.1 * spread)


def report(name: str, title: str, observations: Sequence[Observation], axes: Sequence[str]) -> Report:
    """Return one row for each variant, set and metric: for CSV and JSON, and for the terminal without a layout.

    With several seeds, a second table has the means over them.
    """
    axes = [axis for axis in axes if axis not in ("set", "metric")]
    filtered = any(each.values.get("sparsity") is not None for each in observations)
    tested = any(each.test is not None for each in observations)
    timed = any(each.values.get("training_speed") is not None for each in observations)
    spanned = any(each.values.get("mean_span") is not None for each in observations)
    texts = any(each.labels.get("metric") in TEXT_METRICS for each in observations)
    kind: Kind = "number" if texts else "score"
    measured = columns(
        *("hidden count sentences", f"{kind} quality", shown_if(tested, f"{kind} difference{' low high' * texts}")),
        *(shown_if(tested, "number p_value"), "hidden number sacrebleu_p", "count parameters"),
        *(shown_if(filtered, "share sparsity"), "number attended"),
        *(texts * shown_if(tested, "number fewer_attended"), "share density"),
        *(texts * shown_if(spanned, "number mean_span longest_span"), shown_if(timed, "rate training_speed")),
        *(shown_if(timed, "share training_deviation"), "rate training_seconds", texts * "count updates"),
        "hidden text signature",
    )
    heads = (Column("variant"), *(Column(axis, shown=False) for axis in axes), *columns("text set metric"), *measured)
    rows: list[tuple[Value, ...]] = []
    for each in observations:
        if each.values:
            labels = [each.labels.get(axis) for axis in (*axes, "set", "metric")]
            numbers = {"sentences": each.sentences, **each.values, **(each.test or {}), "signature": each.signature}
            rows.append((each.variant, *labels, *(numbers.get(column.name) for column in measured)))
    tables = [Table("variants", title, heads, tuple(rows))]
    if seed_count(observations) > 1:
        tables.append(seeds_table(observations, [axis for axis in axes if axis != "seed"]))
    return Report(name, tuple(tables))
