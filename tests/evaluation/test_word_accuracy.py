"""The accuracy of words by group and matched n-grams, against loops and values by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sparsenmt.evaluation.matched_ngrams import NGram, matched_ngrams, most_different, ngrams
from sparsenmt.evaluation.word_accuracy import GroupedWords, WordMatches, word_matches


def grouped(text: str) -> GroupedWords:
    return [(word, "upper" if word.isupper() else "lower") for word in text.split()]


def test_values_by_hand() -> None:
    found = word_matches([grouped("a b B b")], [grouped("b b b B c")], ["lower", "upper", "none"])
    assert found["lower"] == WordMatches(matched=2, reference=3, output=4)
    assert found["upper"] == WordMatches(matched=1, reference=1, output=1)
    assert (found["lower"].precision, found["lower"].recall) == (0.5, 2 / 3)
    assert found["lower"].f1 == pytest.approx(4 / 7)
    assert (found["none"].precision, found["none"].recall, found["none"].f1) == (None, None, None)


def test_a_match_counts_in_the_group_of_the_reference() -> None:
    found = word_matches([[("run", "verb"), ("run", "noun")]], [[("run", "noun"), ("x", "noun")]], ["verb", "noun"])
    assert found == {"verb": WordMatches(1, 1, 1), "noun": WordMatches(0, 1, 1)}


def test_over_all_groups_matches_are_those_of_sets_with_counts() -> None:
    rng = random.Random(1)
    texts = [[rng.choices("abcdefg", k=rng.randrange(9)) for _ in range(40)] for _ in range(2)]
    pairs = list(zip(*texts, strict=True))
    words = [[[(word, "vowel" if word in "ae" else "other") for word in line] for line in side] for side in texts]
    found = word_matches(words[0], words[1], ["vowel", "other"])
    for name, each in found.items():
        mine = [[[w for w, group in line if group == name] for line in side] for side in words]
        own = sum(sum((Counter(a) & Counter(b)).values()) for a, b in zip(*mine, strict=True))
        assert (each.matched, each.reference, each.output) == (own, *(sum(map(len, side)) for side in mine))
    assert sum(each.matched for each in found.values()) == sum(
        count for a, b in pairs for each, count in matched_ngrams([a], [b]).items() if len(each) == 1
    )


def test_ngrams_are_matched_at_most_as_often_as_the_reference_has_them() -> None:
    assert list(ngrams("abc")) == [("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("a", "b", "c")]
    assert matched_ngrams([["a", "b", "a"]], [["a", "a", "a", "b"]]) == Counter({("a",): 2, ("b",): 1, ("a", "b"): 1})


def test_the_most_telling_ngrams_come_first() -> None:
    first = Counter[NGram]({("a",): 5, ("b",): 1, ("c",): 9, ("d", "e"): 1})
    second = Counter[NGram]({("c",): 9, ("a",): 1, ("z",): 3})
    assert most_different(first, second, 9) == [("a",), ("d", "e"), ("b",)]
    assert most_different(second, first, 9) == [("z",)]
