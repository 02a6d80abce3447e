"""Diagrams and matrices of tables: bars of groups, and values by layer and head."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sparsenmt.report.page.document import Matrix
from sparsenmt.report.plots import Panel, Points
from sparsenmt.report.tables import Table, Value


def bars(table: Table, group: str, value: str, *, label: str, count: str = "") -> Panel:
    """Draw bars: a tick for each group, with its count where all series have the same, and a series for each model.

    Args:
        group, value, count: names of columns; the values are shares.
        label: of the y axis.
    """
    records = table.records()
    groups = list(dict.fromkeys(str(each[group]) for each in records))
    series: dict[str, list[tuple[float, float | None]]] = {}
    counts: dict[str, set[Value]] = {name: set() for name in groups}
    for each in records:
        series.setdefault(str(each["model"]), []).append((float(groups.index(str(each[group]))), number(each[value])))
        counts[str(each[group])].add(each[count] if count else None)
    known = all(len(found) == 1 and None not in found for found in counts.values())
    names = [f"{name}\n{next(iter(counts[name])):,}" if known else name for name in groups]
    x_label = f"{group}, and number of {count.replace('_', ' ')}" if known else group
    ticks = [(float(i), name) for i, name in enumerate(names)]
    return Panel(x_label, label, series, percent="y", style="bars", ticks=ticks)


def head_matrices(table: Table, value: str, *, title: str, ends: tuple[float, float] | None = None) -> list[Matrix]:
    """Return values by layer and head: a matrix for each model, and each site where the table has sites.

    Args:
        table: with the columns model, layer and number, and perhaps site.
        value: name of a column.
        title: what the values are.
        ends: of the scale of colours.
    """
    kind = table.columns[table.names.index(value)].kind
    places: dict[tuple[str, str], dict[tuple[int, int], float | None]] = {}
    for each in table.records():
        key = str(each["model"]), str(each.get("site") or "encoder self")
        places.setdefault(key, {})[_whole(each["layer"]), _whole(each["number"])] = number(each[value])
    found = []
    for (model, site), values in places.items():
        layers, heads = (sorted({key[side] for key in values}) for side in (0, 1))
        rows = tuple(tuple(values.get((layer, head)) for head in heads) for layer in layers)
        if any(each is not None for row in rows for each in row):
            names = [tuple(map(str, numbers)) for numbers in (layers, heads)]
            found.append(Matrix(f"{title}: {model}, {site}", "layer", names[0], "head", names[1], rows, kind, ends))
    return found


def lines(
    points: Mapping[str, Iterable[tuple[float, float | None]]], x_label: str, y_label: str, title: str = ""
) -> Panel:
    """Draw a line for each series."""
    return Panel(x_label, y_label, {name: list(own) for name, own in points.items()}, title, style="lines")


def without_gaps(panel: Panel) -> Panel:
    """Return a panel whose gaps in lines are values of None, in place of points that are not numbers."""
    series: dict[str, Points] = {}
    for name, points in panel.series.items():
        own: list[tuple[float, float | None]] = []
        for x, y in points:
            if math.isfinite(x):
                own.append((x, y if y is None or math.isfinite(y) else None))
            elif own:
                own.append((own[-1][0], None))
        series[name] = own
    return replace(panel, series=series)


def number(value: Value) -> float | None:
    """Return a number of a table; None if there is none, or a text."""
    return None if value is None or isinstance(value, str) else float(value)


def _whole(value: Value) -> int:
    assert isinstance(value, int)
    return value
