"""Places in words: examples by hand, and rates against loops."""

from __future__ import annotations

from collections import Counter

import pytest

from sparsenmt.analysis.gates import LineBatches, SparsityRate, gated_lines
from sparsenmt.analysis.position_rates import (
    ALONE,
    BINS,
    END,
    OVERALL,
    PUNCTUATION,
    SPACES,
    PlaceInWord,
    Unit,
    inside_word,
    measure,
    panels,
    place_name,
    places,
    report,
)
from sparsenmt.data.tokenizers.symbol_tokenizers import CharTokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.decoding.inputs import SourceLine
from tests.analysis.support import OUTPUT, gated_bundle, sources, tokenizer

CHARACTERS = CharTokenizer([SPACE, *"abcdefghijklmnopqrstuvwxyzA.,'\"-!"], lowercase=False)


def of_text(text: str) -> list[tuple[int, int] | str]:
    found = places(SourceLine(0, text, [*CHARACTERS.encode(text), EOS]), CHARACTERS)
    return [each.outside or (each.index, each.length) for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab c", [(0, 2), (1, 2), SPACES, (0, 1), END]),
        ('"ab,"', [PUNCTUATION, (0, 2), (1, 2), PUNCTUATION, PUNCTUATION, END]),
        ("a-b's", [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5), END]),
        ("- a", [PUNCTUATION, SPACES, (0, 1), END]),
        ("a  b", [(0, 1), SPACES, SPACES, (0, 1), END]),
        ("aéb", [(0, 3), (1, 3), (2, 3), END]),  # unknown, but a character of the word
        ("(aé)", [PUNCTUATION, (0, 2), (1, 2), PUNCTUATION, END]),  # unknown marks are marks
        ("", [END]),
    ],
)
def test_places_of_characters(text: str, expected: list[tuple[int, int] | str]) -> None:
    assert of_text(text) == expected


def test_vowel_signs_are_of_the_word() -> None:
    assert inside_word(list("(ที่)")) == range(1, 4)  # a consonant, a vowel sign and a tone mark


@pytest.mark.parametrize(
    ("place", "unit", "name"),
    [
        (PlaceInWord(0, 5), "characters", "0.0 to 0.1"),
        (PlaceInWord(1, 5), "characters", "0.2 to 0.3"),
        (PlaceInWord(4, 5), "characters", "0.9 to 1.0"),
        (PlaceInWord(1, 2), "characters", "0.9 to 1.0"),
        (PlaceInWord(1, 3), "characters", "0.5 to 0.6"),
        (PlaceInWord(1, 3), "sentence", "0.5 to 0.6"),
        (PlaceInWord(0, 1), "sentence", "alone in its sentence"),
        (PlaceInWord(3, 11), "characters", "0.3 to 0.4"),  # 0.3 in floats is 0.30000000000000004 or a little less
        (PlaceInWord(0, 1), "characters", ALONE),
        (PlaceInWord(0, 1), "pieces", ALONE),
        (PlaceInWord(0, 2), "pieces", "token 1"),
        (PlaceInWord(3, 4), "pieces", "token 4"),
        (PlaceInWord(4, 9), "pieces", "token 5 and later"),
        (PlaceInWord(8, 9), "pieces", "token 5 and later"),
        (PlaceInWord(outside=SPACES), "pieces", SPACES),
    ],
)
def test_rows_of_places(place: PlaceInWord, unit: Unit, name: str) -> None:
    assert place_name(place, unit) == name


def test_pieces_of_subwords() -> None:
    pieces = tokenizer("bpe")
    text = "Katzen steht am"
    ids = pieces.encode(text)
    names = [name.removeprefix(SPACE) for name in pieces.pieces(ids)]
    found = places(SourceLine(0, text, [*ids, EOS]), pieces)
    assert found[-1].outside == END
    text, word = "", 0
    for name, place in zip(names, found, strict=False):
        assert place.index == (0 if text == "" else place.index)
        text += name
        if place.index == place.length - 1:
            assert text == ["Katzen", "steht", "am"][word]
            text, word = "", word + 1
    assert word == 3 and max(place.length for place in found) > 1


@pytest.mark.parametrize(
    ("kind", "unit"), [("char", "characters"), ("char", "pieces"), ("bpe", "pieces"), ("word", "pieces")]
)
def test_rates_are_those_of_loops(kind: str, unit: Unit) -> None:
    bundle = gated_bundle(OUTPUT, kind=kind)
    lines = gated_lines(LineBatches(bundle, sources(bundle, 20), 200))
    pieces = bundle.tokenizers.source
    positions: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for each in lines:
        for place, gate in zip(places(each.line, pieces), each.gates.tolist(), strict=True):  # type: ignore[union-attr]
            positions[place_name(place, unit)] += 1
            dropped[place_name(place, unit)] += gate == 0
    found = measure("m", lines, pieces, unit)
    assert {name: rate for name, rate in found.rates.items() if rate.positions} == {
        name: SparsityRate(count, dropped[name]) for name, count in positions.items()
    }
    assert found.overall == SparsityRate(positions.total(), dropped.total())
    assert len(positions) > 1 and 0 < dropped.total() < positions.total()
    records = report([found]).tables[0].records()
    assert records[0]["place"] == OVERALL and records[0]["sparsity"] == found.overall.sparsity
    shares = [float(each["share_of_dropped"]) for each in records if each["share_of_dropped"] is not None]
    assert kind == "word" or sum(shares) == pytest.approx(1)


def test_the_curve_has_a_point_a_bin_and_a_panel_a_unit() -> None:
    found = []
    for kind, unit in (("char", "characters"), ("bpe", "pieces")):
        bundle = gated_bundle(OUTPUT, kind=kind)
        lines = gated_lines(LineBatches(bundle, sources(bundle), 200))
        found.append(measure(kind, lines, bundle.tokenizers.source, unit))  # type: ignore[arg-type]
    first, second = panels(found)
    assert list(first.series) == ["char"] and len(first.series["char"]) == BINS
    assert list(second.series) == ["bpe"] and [tick[1].split("\n")[0] for tick in second.ticks] == [
        "1",
        "2",
        "3",
        "4",
        "5+",
    ]
