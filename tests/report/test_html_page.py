"""The page of a report: valid HTML from any text, nothing from outside, nothing that runs but its own script."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import zlib
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import pytest

from sparsenmt.errors import UserError
from sparsenmt.report.page import html_page
from sparsenmt.report.page.document import ComparedOutput, ComparedSentence, Document, MarkedWord, Matrix, ReportSection
from sparsenmt.report.page.html_page import MOST_ROWS, rendered, shade, word_note, write_report_page
from sparsenmt.report.page.packed_maps import levels, packed_maps
from sparsenmt.report.page.page_text import MOST_LETTERS, marked_parts, shown_text, word_parts
from sparsenmt.report.tables import Table, columns
from tests.report.sample_document import HOSTILE, LONG, MODELS, sample_document

html5lib = pytest.importorskip("html5lib")


@cache
def sample() -> tuple[Document, str, Element]:
    document = sample_document(4)
    page = rendered(document)
    return document, page, parsed(page)


def parsed(page: str) -> Element:
    """The page as a tree, by a parser that refuses what is no valid HTML."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)


def small(*sections: ReportSection) -> Document:
    return Document("t", "sparsenmt 1", MODELS, {}, sections)


def texts(tree: Element) -> str:
    return "\n".join("".join(each.itertext()) for each in tree.iter() if each.tag not in ("script", "style"))


def test_the_page_is_valid_and_the_same_each_time() -> None:
    document, page, _ = sample()
    assert rendered(document) == page
    assert page.startswith("<!DOCTYPE html>\n") and "\r" not in page


def test_only_the_own_script_runs_and_nothing_is_loaded() -> None:
    _, page, tree = sample()
    scripts = [each for each in tree.iter("script") if each.get("type") != "application/json"]
    (script,), (style,) = scripts, list(tree.iter("style"))
    (policy,) = (each.get("content") for each in tree.iter("meta") if each.get("http-equiv"))
    for directive, element in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256((element.text or "").encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    for each in tree.iter():
        names = {str(name) for name in each.attrib}
        assert not [name for name in names if name.startswith("on") or name in ("src", "style", "srcset", "data")], each
        assert each.get("href", "#").startswith("#")
        assert each.tag not in ("iframe", "object", "embed", "link", "base", "form", "img")
    assert "://" not in page.replace("sha256-", "")


def test_hostile_texts_are_shown_as_texts() -> None:
    _, page, tree = sample()
    shown = texts(tree)
    for text in HOSTILE:
        assert shown_text(text) in shown
    assert not set("\x00\x1b\x7f\u202e\u202c\u200f\udcff") & set(page)
    assert r"control \x00 \x1b[31m \x7f \udcff end" in shown
    assert "left \\u202eright to left\\u202c" in shown


def test_texts_of_data_are_isolated_by_their_direction() -> None:
    """A line in Hebrew beside a number or a name must not move it."""
    _, _, tree = sample()
    holders = {each.tag for each in tree.iter() if (each.text or "").startswith("שלום")}
    assert holders <= {"bdi", "span", "s", "mark"}
    assert all(each.get("dir") == "auto" for each in tree.iter("p") if each.get("class") == "words")


def test_a_long_line_is_cut_with_a_note() -> None:
    _, page, tree = sample()
    assert len(page) < 1_000_000
    assert f"({len(LONG) - MOST_LETTERS:,} more characters: see the JSON)" in texts(tree)
    assert "The first 250 of 301 words; all are in the JSON." in texts(tree)


def test_ids_are_unique_and_named_ones_exist() -> None:
    _, _, tree = sample()
    ids = [each.get("id") for each in tree.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    for each in tree.iter():
        named = [*(each.get("aria-labelledby") or "").split(), *filter(None, [each.get("for")])]
        assert set(named) <= set(ids), named
        if (each.get("href") or "").startswith("#"):
            assert (each.get("href") or "")[1:] in ids


def test_headings_do_not_leave_out_a_level() -> None:
    _, _, tree = sample()
    found = [int(each.tag[1]) for each in tree.iter() if re.fullmatch("h[1-6]", str(each.tag))]
    assert found[0] == 1 and found.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(found))


def test_every_control_and_table_has_a_name() -> None:
    _, _, tree = sample()
    labelled = {each.get("for") for each in tree.iter("label")}
    inside = {id(control) for label in tree.iter("label") for control in label.iter("input")}
    for each in tree.iter():
        if each.tag in ("input", "select"):
            assert each.get("id") in labelled or id(each) in inside
        if each.tag == "button":
            assert each.get("type") == "button" and "".join(each.itertext()).strip()
        if each.tag == "table":
            assert (
                each.find("caption") is not None
                or each.get("aria-labelledby")
                or "figures" in (each.get("class") or "")
            )
        if each.tag == "th":
            assert each.get("scope") in ("row", "col")
        if each.tag == "svg":
            assert each.get("aria-hidden") == "true" or (each.get("role") == "img" and each.get("aria-labelledby"))
        if each.get("role") == "region":
            assert each.get("tabindex") == "0" and each.get("aria-label")


def test_a_section_without_figures_says_why() -> None:
    section = ReportSection("a", "A title", "Group", missing="There is no reference: give `--reference FILE` & <more>.")
    tree = parsed(rendered(small(section)))
    assert "Not measured. There is no reference: give --reference FILE & <more>." in texts(tree)
    assert [each.text for each in tree.iter("code")] == ["--reference FILE"]
    assert "A title (not measured)" in texts(tree)


def test_tables_show_what_the_terminal_shows() -> None:
    table = Table(
        "t",
        "rates",
        columns("text tag model", "share sparsity", "hidden count positions"),
        [("NOUN", "a", 0.25, 4), ("NOUN", "b", None, 4), ("VERB", "a", 0.125, 8), ("VERB", "b", 0.0, 8)],
        across="model",
        shown="sparsity",
    )
    tree = parsed(rendered(small(ReportSection("s", "S", "G", tables=(table,)))))
    (found,) = (each for each in tree.iter("table"))
    rows = [["".join(cell.itertext()) for cell in row] for row in found.iter("tr")]
    assert rows == [["tag", "a", "b"], ["NOUN", "25.0%", "-"], ["VERB", "12.5%", "0.0%"]]
    assert [cell.get("data-value") for cell in found.iter("td")] == ["0.25", None, "0.125", "0.0"]


def test_a_long_table_is_cut_with_a_note() -> None:
    table = Table("t", "t", columns("text a"), [(str(i),) for i in range(MOST_ROWS + 7)])
    tree = parsed(rendered(small(ReportSection("s", "S", "G", tables=(table,)))))
    assert len(list(tree.iter("tr"))) == MOST_ROWS + 1
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 7:,} rows; all are in the JSON." in texts(tree)


def test_compared_sentences_begin_with_the_largest_difference() -> None:
    outputs = (ComparedOutput("a", "one two", {"chrF": 1.0}, ((4, 7),)), ComparedOutput("b", "one", {}))
    found = tuple(ComparedSentence(i, "s", None, float(i % 3), outputs) for i in range(1, 4))
    tree = parsed(rendered(small(ReportSection("s", "S", "G", comparisons=found))))
    numbers = [row.get("data-value") for row in tree.iter("th") if row.get("scope") == "row"]
    assert numbers == ["2", "1", "3"]
    assert [each.text for each in tree.iter("mark")][1:] == ["two"] * 3
    assert "reference" not in texts(tree)


def test_parts_of_a_text() -> None:
    assert [(part.text, part.marked) for part in marked_parts("abcdef", [(4, 6), (1, 3), (2, 3)])] == [
        ("a", False), ("bc", True), ("d", False), ("ef", True),
    ]  # fmt: skip
    assert [part.text for part in marked_parts("", [])] == []
    long = "x" * (MOST_LETTERS + 10)
    found = list(marked_parts(long, [(5, MOST_LETTERS + 8)]))
    assert [len(part.text) for part in found[:2]] == [5, MOST_LETTERS - 5] and "10 more" in found[-1].text


@pytest.mark.parametrize(
    ("gates", "shown"),
    [
        ((0.0, 0.0), [("word", True)]),
        ((0.2, 1.0), [("word", False)]),
        ((0.0, 0.3), [("wo", True), ("rd", False)]),
        ((0.0, 0.0, 0.3), [("wo", True), ("rd", False)]),
        ((0.3, 0.0, 0.0, 1.0), [("wo", False), ("rd", True), ("s", False)]),
        ((), [("word", False)]),
    ],
)
def test_words_are_dropped_where_their_gates_are_0(gates: tuple[float, ...], shown: list[tuple[str, bool]]) -> None:
    word = MarkedWord(
        "word", {3: ("▁", "wo", "rd"), 4: ("▁wo", "r", "d", "s")}.get(len(gates), ("wo", "rd")), gates, "NOUN"
    )
    assert [(part.text, part.marked) for part in word_parts(word)] == shown
    assert word_note(word) == (
        "NOUN, gate " + ", ".join(f"{gate:.2g}" for gate in gates) if {0.2, 0.3} & {*gates} else "NOUN"
    )


def test_shades_cover_the_scale() -> None:
    matrix = Matrix("t", "r", ("1",), "c", ("1", "2", "3"), ((0.0, 0.5, 1.0),))
    assert [shade(matrix, value) for value in (0.0, 0.5, 1.0)] == [0, 5, 9]
    assert shade(replace(matrix, values=((2.0, None, 2.0),)), 2.0) == 0
    assert shade(replace(matrix, ends=(0.0, 0.5)), 1.0) == 9


def test_exact_zeros_stay_apart_from_small_weights() -> None:
    weights = np.array([0.0, 1e-30, 0.004, 0.006, 0.5, 1.0])
    assert levels(weights).tolist() == [0, 1, 1, 2, 51, 101]


def unpack(each: dict[str, Any]) -> np.ndarray[Any, Any]:
    data = np.frombuffer(zlib.decompress(base64.b64decode(each["levels"])), np.uint8)
    return data.reshape(len(each["heads"]), len(each["rows"]), len(each["columns"]))


def test_the_page_holds_the_maps_of_the_document() -> None:
    document, _, tree = sample()
    (script,) = (each for each in tree.iter("script") if each.get("type") == "application/json")
    found = json.loads(script.text or "")
    (section,) = (each for each in document.sections if each.attention)
    assert len(found["maps"]) == len(section.attention)
    assert found["models"] == list(MODELS)
    for packed, maps in zip(found["maps"], section.attention, strict=True):
        weights = np.array([one.weights for one in maps.maps])[:, : len(packed["rows"]), : len(packed["columns"])]
        shown = unpack(packed)
        assert ((shown == 0) == (weights == 0)).all()
        assert np.abs(np.maximum(shown.astype(float) - 1, 0) / 100 - weights).max(initial=0.0) <= 0.005 + 1e-9
        assert [packed["standIn"], packed["site"]] == [maps.stand_in, maps.site]


def test_maps_beyond_their_bytes_are_left_out_by_sentence() -> None:
    document = sample_document(6, hostile=False)
    (section,) = (each for each in document.sections if each.attention)
    everything = packed_maps(section, MODELS, 10**9)
    assert (everything.sentences, everything.left_out, everything.cut) == ((1, 2, 3, 4, 5, 6), 0, False)
    size = len(json.dumps(everything.content))
    some = packed_maps(section, MODELS, size // 2)
    assert 0 < len(some.sentences) < 6 and some.left_out == 6 - len(some.sentences)
    assert {each["number"] for each in some.content["maps"]} == {*some.sentences}


def test_a_page_of_many_sentences_stays_below_5_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a twentieth of the bytes for maps, so that fewer maps fill them."""
    monkeypatch.setattr(html_page, "ATTENTION_BYTES", html_page.ATTENTION_BYTES // 20)
    document = sample_document(200, layers=1, heads=1, hostile=False)
    page = rendered(document)
    assert len(page.encode()) < 5_000_000 - html_page.ATTENTION_BYTES * 19
    assert "more are in the JSON, as the page would grow beyond 5 MB" in page


def test_files_are_written_whole(tmp_path: Path) -> None:
    write_report_page(sample()[0], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == sample()[1]
    with pytest.raises(UserError):
        write_report_page(small(), tmp_path / "missing" / "report.html")


def test_without_jinja_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"Jinja2 is not installed\n.*sparsenmt\[report\]"):
        write_report_page(small(), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
