"""The picture of the parts of the package is current, and its table has them all."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tools import architecture_picture as drawing
from tools.house_numbers import read_package


def test_the_picture_is_current() -> None:
    path = drawing.ROOT / "docs" / "architecture.svg"
    assert path.read_text(encoding="utf-8") == drawing.current_picture(), "run: make docs"


def test_the_table_has_every_part_and_no_other() -> None:
    tops = {path.stem for path in read_package().folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert set(drawing.descriptions()) == {name for name in tops if not name.startswith("_")}


def test_descriptions_fit_their_boxes() -> None:
    placed = drawing.boxes(drawing.layers(), drawing.descriptions(), {"native", "model"})
    assert {name: box.text for name, box in placed.items() if len(box.text) > 2} == {}
    assert sum(bool(box.text) for box in placed.values()) > 15


def test_arrows_lead_down() -> None:
    rows = drawing.layers()
    layer = {name: number for number, row in enumerate(rows) for name in row}
    edges = drawing.direct(drawing.part_imports(read_package()))
    assert {(a, b) for a, b in edges if a in layer and layer[a] >= layer[b]} == set()
    assert ("commands", "workflows") in edges and ("cli", "workflows") not in edges


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ({("a", "b"), ("b", "c"), ("a", "c")}, {("a", "b"), ("b", "c")}),
        ({("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")}, {("a", "b"), ("b", "c"), ("c", "d")}),
        ({("a", "b"), ("a", "c")}, {("a", "b"), ("a", "c")}),
    ],
)
def test_implied_imports_have_no_arrow(edges: drawing.Edges, expected: drawing.Edges) -> None:
    assert drawing.direct(edges) == expected


def test_a_small_picture() -> None:
    svg = drawing.picture([["a"], ["b", "c"], ["d"]], {("a", "c"), ("b", "d")}, {"a": "x & y"}, {"a", "c"})
    root = ET.fromstring(svg)
    assert len(root.findall("{*}g/{*}path")) == 1, "d lies below all folders and has no arrow"
    assert [text.text for text in root.iter() if text.tag.endswith("}text")] == ["a/", "x & y", "b", "c/", "d"]
