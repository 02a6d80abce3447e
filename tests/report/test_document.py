"""The document of a report as JSON: nothing is lost on the way, and what is no JSON is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.report.page.document import Diagram, ReportSection, read_document, write_document
from sparsenmt.report.plots import Panel
from tests.report.sample_document import HOSTILE, LONG, sample_document


def test_a_document_comes_back_as_it_was(tmp_path: Path) -> None:
    document = sample_document(2)
    # pydantic reads no lone surrogates, which JSON has as escapes: they are compared below.
    sections = tuple(
        section for section in document.sections if not {"differences", "kept_words", "attention"} & {section.name}
    )
    document = replace(document, sections=sections[:-1])
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    write_document(document, paths[0])
    write_document(read_document(paths[0]), paths[1])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_json_has_every_text_whole(tmp_path: Path) -> None:
    write_document(sample_document(2), tmp_path / "report.json")
    data = (tmp_path / "report.json").read_bytes()
    assert data.isascii() and data.endswith(b"}\n")
    (section,) = (each for each in json.loads(data)["sections"] if each["name"] == "differences")
    assert [each["source"] for each in section["comparisons"]][: len(HOSTILE) + 1] == [*HOSTILE, LONG]


def test_series_keep_their_order(tmp_path: Path) -> None:
    """The order decides the colours, in the page that is drawn from what was read, too."""
    panel = Panel("x", "y", {"b": [(0.0, 1.0)], "a": [(0.0, None)]})
    section = ReportSection("s", "S", "G", diagrams=(Diagram("d", (panel,)),))
    write_document(replace(sample_document(2), sections=(section,)), tmp_path / "a.json")
    (read,) = read_document(tmp_path / "a.json").sections[0].diagrams[0].panels
    assert list(read.series) == ["b", "a"]


def test_weights_are_exact(tmp_path: Path) -> None:
    document = replace(sample_document(4, hostile=False), sections=())
    section = sample_document(4, hostile=False).sections[8]
    assert section.attention
    write_document(replace(document, sections=(section,)), tmp_path / "a.json")
    assert read_document(tmp_path / "a.json").sections[0].attention == section.attention


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    panel = Panel("x", "y", {"a": [(0.0, float("nan"))]})
    section = ReportSection("s", "S", "G", diagrams=(Diagram("d", (panel,)),))
    with pytest.raises(ValueError, match="Out of range float"):
        write_document(replace(sample_document(2), sections=(section,)), tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"title": "t"}')
    with pytest.raises(UserError, match="damaged, or not written by this program: program is missing"):
        read_document(tmp_path / "a.json")
