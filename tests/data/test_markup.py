"""Inline tags and kept parts: reading, placement by links, and what holds for any tags and any links."""

from __future__ import annotations

import html
import random
import re
from xml.etree import ElementTree

import pytest

from sparsenmt.data.markup import MarkedText, keep_parts, read_markup, transfer, units_of
from sparsenmt.errors import UserError

TAG = re.compile(r"<[^>]*>")
BRACES = [re.compile(r"\{[^{}]*\}")]


def moved(line: str, text: str, links: str, keep: list[re.Pattern[str]] | None = None) -> str:
    marked = keep_parts(read_markup(line, "line"), keep or [])
    places = [(int(i), int(j)) for i, _, j in (link.partition("-") for link in links.split())]
    return transfer(marked, text, places)


def test_a_line_is_divided_into_text_and_elements() -> None:
    found = read_markup("""a<b x="1>2">b &lt;c</b><br>d &amp;&copy;<!-- <u> --><i/> < 3""", "line")
    assert found.text == "ab <cd &\u00a9 < 3" and found.escaped
    assert [(each.begin, each.end, each.opening, each.closing) for each in found.elements] == [
        (1, 5, '<b x="1>2">', "</b>"),
        (5, 5, "<br>", ""),
        (9, 9, "<!-- <u> -->", ""),
        (9, 9, "<i/>", ""),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a <b>c", "<b> is not closed"),
        ("a</b>", "</b> closes <b>, and none is open"),
        ("<b><i>a</b></i>", "</b> closes <b>, where <i> is open"),
        ("<b>a</B>", "</B> closes <B>, where <b> is open"),
        ("</br>", "</br> closes <br>, and none"),
        ("<br>a<br></br>", "<br> is not closed"),
    ],
)
def test_tags_that_are_not_balanced_are_refused(line: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^in, line 3: the tags are not balanced: {re.escape(message)}"):
        read_markup(line, "in, line 3")


def test_units_are_words_and_single_signs_or_characters() -> None:
    assert [text[a:b] for text in ["It's 3,5 क्या?"] for a, b in units_of(text)] == [
        *("It", "'", "s", "3", ",", "5", "क्या", "?")
    ]
    assert len(units_of("猫が好きです。")) == 7


@pytest.mark.parametrize(
    ("line", "text", "links", "expected"),
    [
        ("the <b>red</b> house", "das rote Haus", "0-0 1-1 2-2", "das <b>rote</b> Haus"),
        ("the <b>red</b> house", "la maison rouge", "0-0 2-1 1-2", "la maison <b>rouge</b>"),
        ("<b>red</b> <i>house</i>", "maison rouge", "1-0 0-1", "<i>maison</i> <b>rouge</b>"),
        ("<p>a <b>red <i>house</i></b>.</p>", "une maison rouge.", "0-0 2-1 1-2", None),
        ("a <b>b</b> c", "x y z", "0-0 2-2", "x<b></b> y z"),
        ("a <b>b</b> c", "x", "", "x<b></b>"),
        (
            "<b>switched off</b> it",
            "es schaltete sehr es aus",
            "2-0 0-1 1-4 2-2 2-3",
            "es <b>schaltete</b> sehr es aus",
        ),
        ("a<br> b", "x y", "0-0 1-1", "x<br> y"),
        ("<b>a</b><br> <i>c</i>", "x y", "0-0 1-1", "<b>x</b><br> <i>y</i>"),  # between two that are placed
        ("a <b>c d</b><br> e", "x y z w", "0-0 1-1 2-3 3-2", "x <b>y</b> z w<br>"),
        ("wasser<wbr>stoff ist da", "hydrogen is there", "0-0 1-1 2-2", "hydrogen<wbr> is there"),  # behind its word
        ("<b>a</b> &lt; b", "x < y & z", "0-0 1-1 2-2", "<b>x</b> &lt; y &amp; z"),
        ("H<sub>2</sub>O rises", "H2O steigt", "0-0 1-1", "<sub>H2O</sub> steigt"),
        ("<b> </b>a", "x", "0-0", "<b></b>x"),
        ("<p>a</p>", "x .", "0-0", "<p>x .</p>"),
        ("<b>a b</b> c d", "x y z w", "0-0 1-3 2-1 3-2", "<b>x</b> y z w"),  # a link that leads astray
    ],
)
def test_elements_are_moved_by_links(line: str, text: str, links: str, expected: str | None) -> None:
    found = moved(line, text, links)
    expected = expected or "<p>une <b><i>maison</i> rouge</b>.</p>"
    assert found == expected


@pytest.mark.parametrize(
    ("line", "text", "links", "expected"),
    [
        ("click {a} and {b}", "klicke {b} und {a}", "", "klicke {b} und {a}"),  # as it is
        ("click {a} now", "klicke {ä} jetzt", "0-0 1-1 2-2 3-3 4-4", "klicke {a} jetzt"),  # replaced
        ("click {a} now", "klicke jetzt", "0-0 4-1", "klicke {a} jetzt"),  # inserted
        ("{a}{a}", "x {a}", "", "x {a} {a}"),
        ("see {a}.", "siehe {ä}.", "0-0 1-1 2-2 3-3", "siehe {a}."),  # the full stop is the sentence's
        ("see {a} now", "siehe.", "0-0 2-1", "siehe {a}"),  # apart from the word, as in the source
        ("x{a} y", "siehe.", "0-0 1-1 2-1 3-1", "siehe{a}"),  # joined, as in the source
        ("see {a}", "siehe „ä“!", "0-0 2-2", "siehe „{a}“!"),
        ("<b>{a}</b> c", "y {a}", "3-0", "y <b>{a}</b>"),
        ("<b>{a}</b> of {a}", "{a} von {a}", "", "<b>{a}</b> von {a}"),  # each in its own place
        ("{a<b>b}</b>", "x", "", "<b>{ab} </b>x"),
    ],
)
def test_kept_parts_come_as_they_are(line: str, text: str, links: str, expected: str) -> None:
    assert moved(line, text, links, BRACES) == expected


def test_a_kept_number_is_not_a_part_of_another_one() -> None:
    marked = keep_parts(MarkedText("1 of 2010", "1 of 2010"), [re.compile(r"\b\d+\b")])
    assert transfer(marked, "2010: 1", []) == "2010: 1"
    assert transfer(marked, "2010 x", [(1, 1)]).split().count("1") == 1


def random_line(generator: random.Random) -> str:
    """Words with balanced tags, empty ones and placeholders."""
    parts: list[str] = []
    opened: list[str] = []
    for number in range(generator.randint(1, 12)):
        while opened and generator.random() < 0.3:
            parts.append(f"</{opened.pop()}>")
        if generator.random() < 0.3:
            opened.append(f"t{len(parts)}")
            parts.append(f"<{opened[-1]}>")
        parts.append(generator.choice(["word", "a.b", "x &amp; y", "<br/>", f"{{{number}}}", "H<i>2</i>O", "  "]))
        parts.append(generator.choice([" ", ""]))
    return "".join(parts) + "".join(f"</{name}>" for name in reversed(opened))


@pytest.mark.parametrize("seed", range(100))
def test_any_tags_and_links_give_each_tag_once_balanced_around_the_same_text(seed: int) -> None:
    generator = random.Random(seed)
    line = random_line(generator)
    text = " ".join(
        generator.choice(["Wort", "a.b", "<", "&", "{1}", "H2O", "z!"]) for _ in range(generator.randint(0, 9))
    )
    source, target = units_of(read_markup(line, "").text), units_of(text)
    count = generator.randint(0, 15) if source and target else 0
    links = [(generator.randrange(len(source)), generator.randrange(len(target))) for _ in range(count)]
    marked = read_markup(line, "")
    found = transfer(marked, text, links)
    assert sorted(TAG.findall(found)) == sorted(TAG.findall(line))
    ElementTree.fromstring(f"<all>{found}</all>")  # balanced
    assert html.unescape(TAG.sub("", found)) == text
    kept = transfer(keep_parts(marked, BRACES), text, links)
    ElementTree.fromstring(f"<all>{kept}</all>")
    assert sorted(TAG.findall(kept)) == sorted(TAG.findall(line))
    for part in BRACES[0].findall(marked.text):
        assert part in TAG.sub("", kept)


@pytest.mark.parametrize("seed", range(10))
def test_links_of_a_copy_leave_every_tag_where_it_was(seed: int) -> None:
    generator = random.Random(seed)
    words = [f"w{n}" for n in range(8)]
    a, b = generator.randint(0, 3), generator.randint(4, 7)
    line = " ".join([*words[:a], f"<b>{words[a]}", *words[a + 1 : b], f"{words[b]}</b>", *words[b + 1 :]])
    assert moved(line, " ".join(words), " ".join(f"{n}-{n}" for n in range(8))) == line


@pytest.mark.thorough
def test_a_thousand_tags_take_a_moment_alone() -> None:
    line = "".join(f"<b>w{n}</b> " for n in range(1000)) + "<i " + "'" * 2000
    found = moved(line, " ".join(f"w{n}" for n in range(1000)), " ".join(f"{n}-{n}" for n in range(1000)))
    assert found.count("<b>") == found.count("</b>") == 1000


def test_a_void_tag_of_html_that_is_closed_is_one_of_xml() -> None:
    (found,) = read_markup("a <source>b</source>", "").elements
    assert (found.begin, found.end, found.opening, found.closing) == (2, 3, "<source>", "</source>")


def test_a_comment_needs_its_end() -> None:
    found = read_markup("<!-- a --> b <!-- <i>c</i> <!--", "")
    assert found.text == " b <!-- c <!--" and [each.opening for each in found.elements] == ["<!-- a -->", "<i>"]


def test_tags_that_are_too_deep_are_refused_and_others_are_not() -> None:
    line = f"{'<b>' * 100}a{'</b>' * 100}"
    assert moved(line, "x", "0-0", BRACES) == line.replace("a", "x")
    with pytest.raises(UserError, match=r"^in, line 3: more than 100 tags are open at <i>"):
        read_markup(f"{'<b>' * 100}<i>a</i>", "in, line 3")


def test_a_kept_part_of_the_start_that_is_not_translated_is_gone() -> None:
    marked = keep_parts(MarkedText(">>fra<< a {b}", ">>fra<< a {b}"), [re.compile(">>fra<<"), *BRACES])
    assert transfer(marked.without_start(8), "x {b}", [(0, 0)]) == "x {b}"


def test_a_line_of_very_many_tags_and_parts() -> None:
    """A hundred times these took more than the square of their number."""
    parts = [re.compile("a")]
    assert moved("<!--" * 100_000, "x", "0-0") == "x"
    assert moved("<br>" * 20_000 + "a", "x", "0-0") == "<br>" * 20_000 + "x"
    assert moved("a " * 20_000, "x", "0-0", parts).count("a") == 20_000
