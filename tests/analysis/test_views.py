"""Maps and annotated sentences: what a reader sees of attention and gates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsenmt.analysis import annotate, maps
from sparsenmt.analysis.cross_attention import AttentionMap
from sparsenmt.analysis.gates import GatedLine
from sparsenmt.data.symbol_tokenizers import CharTokenizer, WordTokenizer
from sparsenmt.data.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.decoding.inputs import SourceLine

WORDS = WordTokenizer(["the", "old", "house", "\x1b[2J"], lowercase=False)
CHARACTERS = CharTokenizer([SPACE, *"abc"], lowercase=False)


class Subwords:
    """Pieces as SentencePiece writes them: all that the views ask of a tokenizer."""

    def pieces(self, ids: list[int]) -> list[str]:
        return ["</s>" if id_ == EOS else ["▁ho", "use", "▁the", "."][id_ - 4] for id_ in ids]


def gated(tokenizer: Tokenizer, text: str, gates: list[float] | None, number: int = 0) -> GatedLine:
    ids = [*tokenizer.encode(text), EOS]
    return GatedLine(SourceLine(number, text, ids), None if gates is None else np.array(gates))


def attention(gates: list[float] | None) -> AttentionMap:
    weights = np.array([[0.5, 0.2, 0.2, 0.1], [0.0, 0.25, 0.25, 0.5]])
    return AttentionMap(gated(WORDS, "the old house", gates), [6, EOS], weights)


def test_a_map_gives_the_mass_of_dropped_words_to_their_stand_in() -> None:
    named = maps.name_map("m", attention([1, 0, 0, 0.5]), Tokenizers(WORDS, WORDS, True))
    assert named.columns == ["(dropped)", "the", "old", "house", "</s>"] and named.rows == ["house", "</s>"]
    assert named.dropped == [False, False, True, True, False]
    assert named.weights.tolist() == [[0.4, 0.5, 0, 0, 0.1], [0.5, 0, 0, 0, 0.5]]
    assert maps.text(named) == (
        "sentence 1, m (attention in percent)\n"
        "       (dropped) the [old] [house] </s>\n"
        "house         40  50     ·       ·   10\n"
        "</s>          50   ·     ·       ·   50"
    )
    rows = maps.report([named], layer=2).tables[0].rows
    assert rows[:3] == (
        (1, "m", 0, "house", -1, "(dropped)", 0, 0.4),
        (1, "m", 0, "house", 0, "the", 0, 0.5),
        (1, "m", 0, "house", 1, "old", 1, 0.0),
    )


@pytest.mark.parametrize("gates", [None, [1, 1, 0.5, 1]])
def test_a_map_without_drops_has_no_stand_in(gates: list[float] | None) -> None:
    named = maps.name_map("m", attention(gates), Tokenizers(WORDS, WORDS, True))
    assert named.columns == ["the", "old", "house", "</s>"] and not any(named.dropped)
    assert maps.report([named], layer=None).tables[0].rows[0] == (1, "m", 0, "house", 0, "the", 0, 0.5)


def test_maps_are_drawn_a_line_a_sentence() -> None:
    named = maps.name_map("m", attention([1, 0, 0, 0.5]), Tokenizers(WORDS, WORDS, True))
    grid = maps.grid([named, named])
    assert [len(line) for line in grid] == [2] and grid[0][0].title == "m, sentence 1"


@pytest.mark.parametrize(
    ("text", "gates", "expected"),
    [
        ("ab c", [1, 1, 1, 1, 1], "ab c </s>"),
        ("ab c", [0, 1, 1, 1, 1], "[a]b c </s>"),
        ("ab c", [1, 1, 0, 1, 0], "ab[▁]c [</s>]"),
        ("ab c", [1, 0, 0, 0, 1], "a[b▁c] </s>"),
        ("ab c", [0, 0, 0, 0, 0], "[ab▁c </s>]"),
    ],
)
def test_characters_are_marked(text: str, gates: list[float], expected: str) -> None:
    assert annotate.annotated(gated(CHARACTERS, text, gates), CHARACTERS) == expected


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ([1, 1, 1, 1, 1], "house the. </s>"),
        ([1, 0, 1, 0, 1], "ho[use] the[.] </s>"),
        ([0, 0, 0, 0.1, 0], "[house the]. [</s>]"),
        ([1, 1, 0, 0, 0], "house [the. </s>]"),
    ],
)
def test_pieces_are_marked(gates: list[float], expected: str) -> None:
    each = GatedLine(SourceLine(0, "house the.", [4, 5, 6, 7, EOS]), np.array(gates))
    assert annotate.annotated(each, Subwords()) == expected  # type: ignore[arg-type]


def test_sentences_have_a_line_a_model_and_a_rate() -> None:
    first = [gated(CHARACTERS, "ab", [0, 1, 1]), gated(CHARACTERS, "c", [0, 1], 4)]
    found = [
        annotate.Found("gated", CHARACTERS, first),
        annotate.Found("d", CHARACTERS, [gated(CHARACTERS, "ab", None), gated(CHARACTERS, "c", None, 4)]),
    ]
    assert annotate.text(found) == (
        "sentence 1\n"
        "  gated     33.3%  [a]b </s>\n"
        "  d      no gates  ab </s>\n"
        "sentence 5\n"
        "  gated     50.0%  [c] </s>\n"
        "  d      no gates  c </s>\n"
        "gated: 2 of 5 positions dropped, </s> included (40.0%)\n"
        "d: no filter decides, nothing is dropped"
    )
    rows = annotate.report(found).tables[0].rows
    assert rows[:2] == ((1, "gated", 0, "a", 0.0, 1), (1, "gated", 1, "b", 1.0, 0))
    assert rows[-1] == (5, "d", 1, "</s>", None, 0)


def test_a_sentence_that_is_empty_to_one_tokenizer_is_left_out() -> None:
    first = [gated(CHARACTERS, "ab", [0, 1, 1]), gated(CHARACTERS, "c", [0, 1], 1)]
    found = [annotate.Found("a", CHARACTERS, first), annotate.Found("b", CHARACTERS, first[1:])]
    assert "sentence 1" not in annotate.text(found) and annotate.text(found).startswith("sentence 2\n")
    assert len(annotate.grid(found)) == 1
    named = maps.name_map("m", attention(None), Tokenizers(WORDS, WORDS, True))
    assert len(maps.grid([named, named, replace(named, sentence=2)])) == 1


def test_colours_take_the_place_of_brackets() -> None:
    each = gated(CHARACTERS, "ab", [0, 1, 1])
    assert annotate.annotated(each, CHARACTERS, lambda text, dropped: f"<{text}|{dropped}>") == "<a|True><b </s>|False>"


def test_what_a_terminal_would_obey_is_shown_only() -> None:
    each = gated(WORDS, "\x1b[2J", [0, 1])
    assert "\x1b" not in annotate.annotated(each, WORDS)
    named = maps.name_map("\x1b", AttentionMap(each, [7], np.array([[0.5, 0.5]])), Tokenizers(WORDS, WORDS, True))
    assert "\x1b" not in maps.text(named)
