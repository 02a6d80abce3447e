"""Tables: one set of values, three ways to show it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.report.tables import Column, Report, Table, as_object, csv_text, render, rows_of, write_report
from tests.analysis.support import check_files

COLUMNS = (
    Column("model"),
    Column("kind"),
    Column("words", "count"),
    Column("rate", "share"),
    Column("x_mean", "number"),
)
ROWS = (("a_b", "one", 1234, 0.125, 1 / 3), ("a_b", "two", 0, None, None))
MORE = (("c", "two", 7, 1.0, 2.0), ("c", 'three, "more"', 8, 0.0, 0.0))


def table(rows: tuple[tuple[object, ...], ...] = ROWS, **options: str) -> Table:
    return Table("main", "a title", COLUMNS, rows, **options)  # type: ignore[arg-type]


def test_a_table_on_the_terminal() -> None:
    assert render(Report("r", (table(),), ("a note",))) == (
        "a title\n"
        "model  kind  words   rate  x mean\n"
        "-----  ----  -----  -----  ------\n"
        "a_b    one   1,234  12.5%   0.333\n"
        "a_b    two       0      -       -\n"
        "\n"
        "a note"
    )


def test_one_model_stands_in_the_title() -> None:
    assert render(Report("r", (table(across="model", shown="rate"),))) == (
        "a title: a_b\n"
        "kind  words   rate  x mean\n"
        "----  -----  -----  ------\n"
        "one   1,234  12.5%   0.333\n"
        "two       0      -       -"
    )


def test_several_models_stand_side_by_side() -> None:
    shown = render(Report("r", (table((*ROWS, *MORE), across="model", shown="rate"),)))
    assert shown == (
        "a title\n"
        "kind             a_b       c\n"
        "-------------  -----  ------\n"
        "one            12.5%       -\n"
        "two                -  100.0%\n"
        'three, "more"      -    0.0%'
    )


def test_json_and_csv_hold_the_same_values(tmp_path: Path) -> None:
    second = Table("other", "", (Column("n", "count"),), ((1,), (2,)))
    report = Report("r", (table((*ROWS, *MORE)), second), ("a note",), {"limit": None})
    written = write_report(report, json=tmp_path / "r.json", csv=tmp_path / "r.csv")
    assert [path.name for path in written] == ["r.json", "r.csv", "r.other.csv"]
    check_files(report, tmp_path / "r.json", tmp_path / "r.csv")
    loaded = json.loads((tmp_path / "r.json").read_bytes())
    assert loaded == as_object(report) and loaded["settings"] == {"limit": None}
    read = list(csv.DictReader(io.StringIO((tmp_path / "r.csv").read_bytes().decode())))
    for row, record in zip(read, loaded["tables"]["main"], strict=True):
        assert {name: "" if value is None else str(value) for name, value in record.items()} == row
    assert (tmp_path / "r.other.csv").read_bytes() == b"n\n1\n2\n"


def test_what_a_terminal_would_obey_is_shown_only() -> None:
    bad = Table("t", "\x1b[1m", (Column("a"),), (("\x1b[31mred",),))
    assert "\x1b" not in render(Report("r", (bad,), ("\x1b",)))
    assert "\x1b[31mred" in csv_text(bad)


def test_wide_letters_take_two_columns() -> None:
    wide = Table("t", "t", (Column("a"), Column("n", "count")), (("模型", 1), ("ab", 22)))
    assert render(Report("r", (wide,))).split("\n")[1:] == ["a      n", "----  --", "模型   1", "ab    22"]


def test_rows_are_attributes() -> None:
    assert rows_of([Column("one"), Column("two", "count")], (Column("name"), Column("kind"))) == (
        ("one", "text"),
        ("two", "count"),
    )


def test_a_row_of_another_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="table main: rows must have 5 values"):
        table((("a",),))


@pytest.mark.parametrize("option", ["json", "csv"])
def test_a_place_that_cannot_be_written(tmp_path: Path, option: str) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        write_report(Report("r", (table(),)), **{option: tmp_path / "missing" / "x"})
