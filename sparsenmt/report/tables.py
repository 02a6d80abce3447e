"""Tables of a report: on the terminal, as CSV and as JSON, all from the same rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sparsenmt.errors import printable
from sparsenmt.files import explain_write_errors, write_json, write_text
from sparsenmt.report.columns import left, right, width

Value = str | int | float | None
"""A cell. None: not measured, or nothing to measure it on."""

Kind = Literal["text", "count", "rate", "share", "score", "number"]


@dataclass(frozen=True)
class Column:
    """A column of a table: its name in JSON and CSV, and how the terminal shows its values, if it does."""

    name: str
    kind: Kind = "text"
    shown: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of named values, one observation a row.

    Args:
        name: of the table in JSON, and in the names of further CSV files.
        across: column whose values become columns on the terminal, if there are several; ``shown`` fills the cells, and
            text columns name the rows.
        listed: whether the terminal shows the table.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    across: str | None = None
    shown: str | None = None
    listed: bool = True

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.name}: rows must have {len(self.columns)} values")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    def records(self) -> list[dict[str, Value]]:
        """The rows as dictionaries."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]

    def column(self, name: str) -> list[Value]:
        """The values of one column."""
        place = self.names.index(name)
        return [row[place] for row in self.rows]


def rows_of(found: Iterable[object], columns: Sequence[Column]) -> tuple[tuple[Value, ...], ...]:
    """Rows out of objects whose attributes are called like the columns."""
    return tuple(tuple(getattr(each, column.name) for column in columns) for each in found)


@dataclass(frozen=True)
class Report:
    """What a report found: tables, the first one the main one; notes; and the settings that it was made with."""

    name: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def render(report: Report) -> str:
    """The report for a terminal or a text file, without a line end after it."""
    listed = [table for table in report.tables if table.rows and table.listed]
    parts = ["\n".join([printable(_title(table)), _grid(*_pivoted(table))]) for table in listed]
    return "\n\n".join([*parts, *(["\n".join(map(printable, report.notes))] if report.notes else [])])


def write_report(report: Report, *, json: Path | None = None, csv: Path | None = None) -> list[Path]:
    """Write a report, each file complete or not at all; returns the files.

    JSON holds everything. CSV holds the first table; a further one lies beside it, with its name before the suffix.

    Raises:
        UserError: a place cannot be written.
    """
    written: list[Path] = []
    if json is not None:
        with explain_write_errors(json):
            write_json(json, as_object(report))
        written.append(json)
    for i, table in enumerate(report.tables if csv is not None else ()):
        assert csv is not None
        path = csv if i == 0 else csv.with_name(f"{csv.stem}.{table.name}{csv.suffix}")
        with explain_write_errors(path):
            write_text(path, csv_text(table))
        written.append(path)
    return written


def as_object(report: Report) -> dict[str, Any]:
    """The report as JSON holds it."""
    return {
        "report": report.name,
        "settings": dict(report.settings),
        "notes": list(report.notes),
        "tables": {table.name: table.records() for table in report.tables},
    }


def csv_text(table: Table) -> str:
    """A table as CSV: a line of names, numbers as JSON writes them, nothing for None."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.names)
    writer.writerows(["" if value is None else value for value in row] for row in table.rows)
    return stream.getvalue()


def _heads(table: Table) -> list[Value]:
    """What goes across on the terminal."""
    return [] if table.across is None else list(dict.fromkeys(table.column(table.across)))


def _title(table: Table) -> str:
    heads = _heads(table)
    return f"{table.title}: {heads[0]}" if len(heads) == 1 else table.title


def _pivoted(table: Table) -> tuple[list[Column], Sequence[Sequence[Value]]]:
    """Columns and rows as the terminal shows them; what goes across, if it is one thing, stands in the title."""
    columns = [replace(column, name=column.name.replace("_", " ")) for column in table.columns]
    heads = _heads(table)
    if len(heads) < 2 or table.across is None or table.shown is None:
        alone = table.across if len(heads) == 1 else None
        kept = [i for i, column in enumerate(table.columns) if column.shown and column.name != alone]
        return [columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows]
    across, filling = (table.names.index(name) for name in (table.across, table.shown))
    keys = [i for i, column in enumerate(columns) if column.shown and column.kind == "text" and i != across]
    cells: dict[tuple[Value, ...], dict[Value, Value]] = {}
    for row in table.rows:
        cells.setdefault(tuple(row[i] for i in keys), {})[row[across]] = row[filling]
    rows = [[*key, *(found.get(head) for head in heads)] for key, found in cells.items()]
    return [*(columns[i] for i in keys), *(Column(str(head), columns[filling].kind) for head in heads)], rows


def _grid(columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> str:
    """Columns side by side; text to the left, numbers to the right."""
    texts = [[_shown(value, column.kind) for value, column in zip(row, columns, strict=True)] for row in rows]
    heads = [printable(column.name) for column in columns]
    widths = [max(map(width, cells)) for cells in zip(heads, *texts, strict=True)]

    def line(cells: Sequence[str]) -> str:
        places = zip(cells, widths, columns, strict=True)
        joined = (left(cell, size) if column.kind == "text" else right(cell, size) for cell, size, column in places)
        return "  ".join(joined).rstrip()

    return "\n".join([line(heads), line(["-" * size for size in widths]), *map(line, texts)])


def _shown(value: Value, kind: Kind) -> str:
    if value is None:
        return "-"
    if kind == "text" or isinstance(value, str):
        return printable(str(value))
    if kind == "share":
        return f"{value:.1%}"
    formats = {"count": ",", "rate": ",.0f", "score": ".2f"}
    return format(value, formats.get(kind, ".3f"))
