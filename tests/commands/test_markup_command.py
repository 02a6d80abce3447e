"""`decode --markup xml` and `--keep`: tags and kept parts of every line come once; streams, resumption, mistakes."""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from sparsenmt.workflows.decoding.aligned_output import _whole_tokens
from tests.commands.support import Run

TAG = re.compile(r"<[^>]*>")
SOURCE = "corpus/test.en"


@pytest.fixture
def marked(workspace: Path) -> list[str]:
    """Lines with nested tags at random words, empty tags and placeholders, in the file ``marked``."""
    generator, found = random.Random(1), []
    for number, line in enumerate(Path(SOURCE).read_text().splitlines()):
        words = line.split()
        a, b = sorted(generator.sample(range(len(words)), 2))
        words[a], words[b] = f"<b>{words[a]}", f"<i>{words[b]}</i></b>"
        words.insert(generator.randrange(len(words)), "<br/>")
        words.append(f"{{name{number}}} &amp; 5")
        found.append(" ".join(words))
    Path("marked").write_text("".join(f"{line}\n" for line in found))
    return found


def test_tags_come_once_and_balanced_around_the_translation(command: Run, marked: list[str]) -> None:
    plain = "".join(f"{html.unescape(TAG.sub('', line))}\n" for line in marked)
    for method in ("beam", "greedy", "sample"):
        wanted = command("decode", "model", "--method", method, stdin=plain.encode()).lines
        found = command("decode", "model", "--method", method, "-i", "marked", "--markup", "xml").lines
        assert [html.unescape(TAG.sub("", line)) for line in found] == wanted
        for line, own in zip(marked, found, strict=True):
            assert sorted(TAG.findall(own)) == sorted(TAG.findall(line))
            ElementTree.fromstring(f"<all>{own}</all>")


def test_kept_parts_are_in_every_translation(command: Run, marked: list[str]) -> None:
    options = ("--markup", "xml", "--keep", r"\{[^{}]*\}", "--keep", r"\d")
    found = command("decode", "model", "-i", "marked", *options, "--n-best", "2", "--json").lines
    for number, (line, text) in enumerate(zip(map(json.loads, found), marked, strict=True)):
        assert line["source"] == text
        for each in line["hypotheses"]:
            assert f"{{name{number}}}" in each["text"] and "5" in each["text"]
            ElementTree.fromstring(f"<all>{each['text']}</all>")
    plain = command("decode", "model", "--keep", "Q{2}", stdin=b"a <QQ & b\n\n")
    assert "QQ" in plain.lines[0] and "&amp;" not in plain.lines[0] and plain.lines[1] == ""


def test_links_beside_tags_are_those_of_the_words(command: Run, marked: list[str]) -> None:
    both = command("decode", "model", "-i", "marked", "--markup", "xml", "--alignments", "hard").lines
    alone = command("decode", "model", "-i", "marked", "--markup", "xml").lines
    assert [line.rpartition(" ||| ")[0] for line in both] == alone
    assert command("decode", "model", "--markup", "xml", stdin=b"<p><br/></p>\n").lines == ["<p><br/></p>"]


def test_what_does_not_fit_is_refused(command: Run, refused: Callable[..., str], marked: list[str]) -> None:
    wanted = ("decode", "model", "-i", "marked", "-o", "out")
    assert "--keep: '(' is no regular expression" in refused(*wanted, "--keep", "(")
    assert "--keep: 'x*' is found where nothing stands" in refused(*wanted, "--keep", "x*")
    assert "--tags: is given beside --markup" in refused(*wanted, "--markup", "xml", "--tags", SOURCE)
    assert "--markup: is given beside --documents" in refused(*wanted, "--markup", "xml", "--documents", SOURCE)
    Path("marked").write_text("<b>x</b>\n<b>\n")
    message = refused(*wanted, "--markup", "xml")
    assert "marked, line 2: the tags are not balanced: <b> is not closed" in message
    failed = command("decode", "model", "--markup", "xml", stdin=b"</b>\n")
    assert failed.code == 2 and "stdin, line 1: the tags are not balanced" in failed.err


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        ("東京で", [(0, 2), (2, 3)], {0: range(2)}),
        ("Warte ... jetzt", [(0, 5), (5, 9), (9, 15)], {1: range(1, 4)}),
        ("ein Wort", [(0, 3), (3, 6), (6, 8)], {}),
        (" ", [], {}),
    ],
)
def test_a_token_belongs_to_all_units_that_it_touches(
    text: str, spans: list[tuple[int, int]], expected: dict[int, range]
) -> None:
    tokenizer = SimpleNamespace(spans=lambda line: spans if line == text else [])
    assert _whole_tokens(cast("Any", tokenizer), text) == expected
