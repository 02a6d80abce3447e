"""Tables of a report: on the terminal, as CSV and as JSON, all from the same rows."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from sparsenmt.errors import printable
from sparsenmt.report.columns import aligned, column_widths
from sparsenmt.storage.files import explain_write_errors, write_json, write_text

Value = str | int | float | None
"""The value of a cell; None: there was nothing to measure it on."""

Kind = Literal["text", "count", "rate", "share", "score", "number"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name: in JSON and CSV; the terminal shows blanks instead of underscores.
        kind: decides the format on the terminal.
        shown: False: the terminal leaves the column out.
    """

    name: str
    kind: Kind = "text"
    shown: bool = True


def columns(*groups: str) -> tuple[Column, ...]:
    """Make columns from groups of one kind each: ``columns("text model site", "hidden count index", "share density")``.

    Args:
        groups: a kind and the names of its columns; the terminal leaves out those of a group that begins with "hidden";
            an empty group has no columns.
    """
    made: list[Column] = []
    for group in filter(None, groups):
        kind, *names = group.removeprefix("hidden ").split()
        if kind not in get_args(Kind):
            raise ValueError(f"{kind} is no kind of a column")
        made += [Column(name, kind, not group.startswith("hidden ")) for name in names]  # type: ignore[arg-type]
    return tuple(made)


def shown_if(shown: bool, group: str) -> str:
    """Return a group for `columns`, which the terminal leaves out unless it is shown."""
    return group if shown else f"hidden {group}"


@dataclass(frozen=True)
class Table:
    """Rows of named values, one observation a row.

    Args:
        name: of the table in JSON, and in the names of further CSV files.
        across: on the terminal, the different values of this column, if there are several, become columns; ``shown``
            fills their cells, and the other text columns name the rows.
        shown: the column that fills the cells.
        listed, filed: False: the terminal, or the files leave the table out.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Value, ...]]
    across: str | None = None
    shown: str | None = None
    listed: bool = True
    filed: bool = True

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.name}: rows must have {len(self.columns)} values")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def records(self) -> list[dict[str, Value]]:
        """Return the rows as dictionaries."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]

    def column(self, name: str) -> list[Value]:
        """Return the values of one column."""
        place = self.names.index(name)
        return [row[place] for row in self.rows]


def rows_of(results: Iterable[object], columns: Sequence[Column]) -> tuple[tuple[Value, ...], ...]:
    """Make rows of objects that have an attribute for every column, with the column's name."""
    return tuple(tuple(getattr(each, column.name) for column in columns) for each in results)


@dataclass(frozen=True, repr=False)
class Report:
    """The content of a report; ``print`` writes its tables, and a notebook shows them.

    Args:
        name: in JSON.
        tables: the main one first.
        notes: lines below the tables.
        settings: the options that the report was made with, for JSON.
    """

    name: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def filed(self) -> list[Table]:
        """The tables of files."""
        return [table for table in self.tables if table.filed]

    def __str__(self) -> str:
        return render(self)

    def __repr__(self) -> str:
        return f"Report({self.name}: {', '.join(f'{each.name}, {len(each.rows)} rows' for each in self.tables)})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(render(self))}</pre>"


def render(report: Report) -> str:
    """Return the report as text for a terminal, without a line end at its end."""
    shown = [shown_table(table) for table in report.tables if table.rows and table.listed]
    parts = [f"{printable(title)}\n{_grid(columns, rows)}" for title, columns, rows in shown]
    return "\n\n".join([*parts, *(["\n".join(map(printable, report.notes))] if report.notes else [])])


def write_report(report: Report, *, json: Path | None = None, csv: Path | None = None) -> list[Path]:
    """Write a report, each file complete or not at all; returns the files.

    JSON holds everything. CSV holds the first table; each further table goes to a file beside it, whose name has the
    table's name before the suffix.

    Raises:
        UserError: a place cannot be written.
    """
    written: list[Path] = []
    if json is not None:
        with explain_write_errors(json):
            write_json(json, as_object(report))
        written.append(json)
    for i, table in enumerate(report.filed if csv is not None else ()):
        assert csv is not None
        path = csv if i == 0 else csv.with_name(f"{csv.stem}.{table.name}{csv.suffix}")
        with explain_write_errors(path):
            write_text(path, csv_text(table))
        written.append(path)
    return written


def as_object(report: Report) -> dict[str, Any]:
    """Return the report as a JSON object."""
    return {
        "report": report.name,
        "settings": dict(report.settings),
        "notes": list(report.notes),
        "tables": {table.name: table.records() for table in report.filed},
    }


def csv_text(table: Table) -> str:
    """Return a table as CSV: a line of names, numbers unrounded, an empty cell for None."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.names)
    writer.writerows(["" if value is None else value for value in row] for row in table.rows)
    return stream.getvalue()


def shown_table(table: Table) -> tuple[str, list[Column], Sequence[Sequence[Value]]]:
    """Return the title, columns and rows that a reader sees, with the values of ``across`` as columns.

    A single value of ``across`` stands in the title instead of a column.
    """
    heads = [] if table.across is None else list(dict.fromkeys(table.column(table.across)))
    title = f"{table.title}: {heads[0]}" if len(heads) == 1 else table.title
    return title, *_pivoted(table, heads)


def _pivoted(table: Table, heads: Sequence[Value]) -> tuple[list[Column], Sequence[Sequence[Value]]]:
    """Return the columns and rows that the terminal shows; ``heads`` are the different values of ``across``."""
    columns = [replace(column, name=column.name.replace("_", " ")) for column in table.columns]
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
    """Align the columns, text flush left and numbers flush right, below a line of names."""
    heads = [printable(column.name) for column in columns]
    texts = [[shown_value(value, column.kind) for value, column in zip(row, columns, strict=True)] for row in rows]
    dashes = ["-" * size for size in column_widths([heads, *texts])]
    numbers = [i for i, column in enumerate(columns) if column.kind != "text"]
    return "\n".join(aligned([heads, dashes, *texts], flush_right=numbers))


def shown_value(value: Value, kind: Kind) -> str:
    """Return a value as a reader sees it in a column of a kind."""
    if value is None:
        return "-"
    if kind == "text" or isinstance(value, str):
        return printable(str(value))
    if kind == "share":
        return f"{value:.1%}"
    formats = {"count": ",", "rate": ",.0f", "score": ".2f"}
    return format(value, formats.get(kind, ".3f"))
