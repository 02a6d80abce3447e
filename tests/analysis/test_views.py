"""Maps and annotated sentences: what a reader sees of attention and gates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsenmt.analysis import annotate
from sparsenmt.analysis import attention_maps as maps
from sparsenmt.analysis.attention_maps import ChosenAttention, MapChoice
from sparsenmt.analysis.gates import GatedLine
from sparsenmt.analysis.observe import Attended, TargetLine
from sparsenmt.data.tokenizers.symbol_tokenizers import CharTokenizer, WordTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.decoding.inputs import SourceLine

WORDS = WordTokenizer(["the", "old", "house", "\x1b[2J"], lowercase=False)
CROSS = MapChoice()
CHARACTERS = CharTokenizer([SPACE, *"abc"], lowercase=False)


class Subwords:
    """Pieces as SentencePiece writes them: all that the views ask of a tokenizer."""

    def pieces(self, ids: list[int], unknown: tuple[str, ...] = ()) -> list[str]:
        return ["</s>" if id_ == EOS else ["▁ho", "use", "▁the", "."][id_ - 4] for id_ in ids]


def gated(tokenizer: Tokenizer, text: str, gates: list[float] | None, number: int = 0) -> GatedLine:
    ids = [*tokenizer.encode(text), EOS]
    return GatedLine(SourceLine(number, text, ids), None if gates is None else np.array(gates))


WEIGHTS = [[0.5, 0.2, 0.2, 0.1], [0.0, 0.25, 0.25, 0.5]]


def named(
    gates: list[float] | None = None, *, model: str = "m", pick: MapChoice = CROSS, tokenizer: Tokenizer = WORDS
) -> list[maps.SentenceMap]:
    """The maps of "the old house", read along "house </s>"."""
    line = gated(tokenizer, "the old house", gates)
    output = TargetLine([6])
    size = {"cross": (2, 4), "encoder_self": (4, 4), "decoder_self": (2, 2)}[pick.site]
    weights = torch.zeros(1, 2, *size)
    weights[0, :, :2] = torch.tensor(WEIGHTS)[:, : size[1]]
    seen = ChosenAttention(pick)
    real = torch.ones(1, size[0], dtype=torch.bool)
    seen(Attended(pick.site, 1, weights, real[:, None, :, None], real, [0]))
    return maps.sentence_maps(model, [line], [output], seen, pick, Tokenizers(tokenizer, tokenizer, True))


def test_a_map_gives_the_mass_of_dropped_words_to_their_stand_in() -> None:
    (one,) = named([1, 0, 0, 0.5])
    assert one.columns == ["(dropped)", "the", "old", "house", "</s>"] and one.rows == ["house", "</s>"]
    assert one.dropped == [False, False, True, True, False]
    assert one.weights == pytest.approx(np.array([[0.4, 0.5, 0, 0, 0.1], [0.5, 0, 0, 0, 0.5]]))
    assert maps.text([one], 80) == (
        "sentence 1, cross-attention in percent\n"
        "m\n"
        "       (dropped) the [old] [house] </s>\n"
        "house         40  50     ·       ·   10\n"
        "</s>          50   ·     ·       ·   50"
    )
    rows = maps.report([one], CROSS).tables[0].rows
    assert rows[0][:-1] == (1, "m", "cross", None, None, 0, "house", -1, "(dropped)", 0)
    assert rows[1][5:] == (0, "house", 0, "the", 0, 0.5)
    assert rows[2][5:] == (0, "house", 1, "old", 1, 0.0)


@pytest.mark.parametrize("gates", [None, [1, 1, 0.5, 1]])
def test_a_map_without_drops_has_no_stand_in(gates: list[float] | None) -> None:
    (one,) = named(gates)
    assert one.columns == ["the", "old", "house", "</s>"] and not any(one.dropped)
    assert maps.report([one], CROSS).tables[0].rows[0][5:] == (0, "house", 0, "the", 0, 0.5)


def test_self_attention_has_no_stand_in_and_the_decoder_begins_with_s() -> None:
    (encoder,) = named([1, 0, 0, 0.5], pick=MapChoice("encoder_self"))
    assert encoder.rows == encoder.columns == ["the", "old", "house", "</s>"] and not any(encoder.dropped)
    (decoder,) = named([1, 0, 0, 0.5], pick=MapChoice("decoder_self"))
    assert decoder.rows == decoder.columns == ["<s>", "house"]
    assert maps.text([decoder], 80).startswith("sentence 1, decoder self-attention in percent\nm\n")


def test_maps_stand_side_by_side_where_there_is_room() -> None:
    both = [*named(), *named([1, 0, 0, 1], model="other")]
    (heading, *wide), (again, *narrow) = (maps.text(both, columns).split("\n") for columns in (200, 40))
    alone = [maps.block(one) for one in both]
    assert heading == again == "sentence 1, cross-attention in percent"
    assert len(wide) == 4 and narrow == [*alone[0], "", *alone[1]]
    for row, first, second in zip(wide, *alone, strict=True):
        assert row.startswith(first) and row.endswith(second)
    first, second = maps.text([both[0], replace(both[1], sentence=2)], 200).split("\n\n")
    assert first.split("\n") == [heading, *alone[0]]
    assert second.split("\n") == [heading.replace("1", "2"), *alone[1]]


def test_apart_every_head_has_a_title_and_a_place_in_the_grid() -> None:
    pick = MapChoice(apart=True)
    own = named(pick=pick)
    assert [one.title for one in own] == ["m, head 1.1", "m, head 1.2"]
    assert [row[3:5] for row in maps.report(own, pick).tables[0].rows[:1]] == [(1, 1)]
    assert [len(line) for line in maps.grid(own)] == [2]  # one model: a line a layer
    both = [*own, *named(model="other", pick=pick)]
    assert [[each.title for each in line] for line in maps.grid(both)] == [
        ["m, head 1.1, sentence 1", "other, head 1.1, sentence 1"],
        ["m, head 1.2, sentence 1", "other, head 1.2, sentence 1"],
    ]


def test_maps_are_drawn_a_line_a_sentence() -> None:
    grid = maps.grid([*named([1, 0, 0, 0.5]), *named(None, model="n")])
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
        annotate.AnnotationResult("gated", CHARACTERS, first),
        annotate.AnnotationResult("d", CHARACTERS, [gated(CHARACTERS, "ab", None), gated(CHARACTERS, "c", None, 4)]),
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
    assert rows[:2] == [(1, "gated", 0, "a", 0.0, 1), (1, "gated", 1, "b", 1.0, 0)]
    assert rows[-1] == (5, "d", 1, "</s>", None, 0)


def test_a_sentence_that_is_empty_to_one_tokenizer_is_left_out() -> None:
    first = [gated(CHARACTERS, "ab", [0, 1, 1]), gated(CHARACTERS, "c", [0, 1], 1)]
    found = [annotate.AnnotationResult("a", CHARACTERS, first), annotate.AnnotationResult("b", CHARACTERS, first[1:])]
    assert "sentence 1" not in annotate.text(found) and annotate.text(found).startswith("sentence 2\n")
    assert [text.title for text in annotate.drawn(found)] == ["a, sentence 2", "b, sentence 2"]
    one, other = named()[0], named(model="n")[0]
    assert len(maps.grid([one, other, replace(one, sentence=2)])) == 1


def test_colours_take_the_place_of_brackets() -> None:
    each = gated(CHARACTERS, "ab", [0, 1, 1])
    assert annotate.annotated(each, CHARACTERS, lambda text, dropped: f"<{text}|{dropped}>") == "<a|True><b </s>|False>"


def test_what_a_terminal_would_obey_is_shown_only() -> None:
    each = gated(WORDS, "\x1b[2J", [0, 1])
    assert "\x1b" not in annotate.annotated(each, WORDS)
    (one,) = named(model="\x1b")
    assert "\x1b" not in maps.text([one], 80)
