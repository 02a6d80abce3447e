"""HTML for notebooks: well-formed, escaped, and no larger than a page can show."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

import sparsenmt
from sparsenmt.report import html
from tests.api.support import SENTENCES

NASTY = ["<script>alert(1)</script>", "a\"b'c", "x & y", "\u202etext\x1b[2J", "</td>"]


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{text}</div>")


@pytest.mark.parametrize("name", NASTY)
def test_texts_are_escaped(name: str) -> None:
    values = np.array([[0.0, 0.5], [0.001, 1.0]])
    for shown in (
        html.colour_table(values, [name, "b"], ["c", name], caption=name, gone=[True, False]),
        html.marked([[(name, 0.5)], [("b", 0.0)]]),
        html.table(["a", name], [[html.text(name), "1"]]),
    ):
        assert "script" not in [each.tag for each in parsed(shown).iter()]
        assert "\u202e" not in shown and "\x1b" not in shown
        assert name.split("\x1b")[0].removeprefix("\u202e") in "".join(parsed(shown).itertext())


def test_results_are_well_formed(gated: sparsenmt.Model) -> None:
    source, target = f"{SENTENCES[3]} {NASTY[0]} {NASTY[1]}", SENTENCES[1]
    found = gated.translate([source, ""], n_best=2)
    for result in (
        *(found, found[0], gated.kept(source), gated.attention(source, target)),
        *gated.alignments([source], [target]),
    ):
        assert {each.tag for each in parsed(result._repr_html_()).iter()} & {"script", "b"} == set()


def test_zeros_differ_from_small_weights() -> None:
    cells = list(parsed(html.colour_table(np.array([[0.0, 1e-5, 1.0]]), ["q"], list("abc"), caption="")).iter("td"))
    assert [cell.text for cell in cells] == ["·", "<1", "100"]
    colours = [cell.attrib["style"].split("background:")[1][:7] for cell in cells]
    assert colours[0] == "#ffffff" and len(set(colours)) == 3
    assert [cell.attrib["title"] for cell in cells] == ["q | a: 0", "q | b: 1e-05", "q | c: 1"]


def test_large_maps_show_their_beginning() -> None:
    names = [str(n) for n in range(90)]
    shown = html.colour_table(np.ones((90, 70)), names, names[:70], caption="weights")
    assert len(list(parsed(shown).iter("td"))) == html.MOST_CELLS**2
    assert "weights; the first 60 of 90 rows and 60 of 70 columns" in shown


def test_long_lists_show_their_beginning(gated: sparsenmt.Model) -> None:
    one = gated.translate(SENTENCES[:1])[0]
    assert "... 20 more" in sparsenmt.Translations((one,) * 120)._repr_html_()


def test_an_empty_map_is_drawn() -> None:
    assert parsed(html.colour_table(np.zeros((0, 2)), [], ["a", "b"], caption="")) is not None
