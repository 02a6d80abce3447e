"""A long text is divided at sentence ends first, and every part that can be short enough is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from sparsenmt.data.sentences import divide


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def letters(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


def parts(text: str, several: int, most: int, count: object = words) -> list[str]:
    return [text[slice(*span)] for span in divide(text, count, several, most)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four! Five? Six", ["One two.", "Three four!", "Five?", "Six"]),
        ('He said "Go." Then he left.  Yes…', ['He said "Go."', "Then he left.", "Yes…"]),
        ("Mr. Smith and Dr. J. Doe met. Then", ["Mr. Smith and Dr. J. Doe met.", "Then"]),
        ("mr . smith came on 31 . may . then", ["mr . smith came on 31 . may .", "then"]),  # tokenised
        ("am 3. Mai kam er. Um 17 Uhr", ["am 3. Mai kam er.", "Um 17 Uhr"]),
        ("z.B. Haus, e.g. house. the end follows here", ["z.B. Haus, e.g. house. the end follows here"]),
        ("all is lower. still two sentences", ["all is lower.", "still two sentences"]),
        ("a tokenised text . And more .", ["a tokenised text .", "And more ."]),
        ("これは。それは！あれ", ["これは。", "それは！", "あれ"]),
        ("यह घर है। वह नदी है।", ["यह घर है।", "वह नदी है।"]),
        ("أين البيت؟ هنا.", ["أين البيت؟", "هنا."]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert parts(text, 0, 50) == expected


def test_a_text_that_is_short_enough_is_whole() -> None:
    assert parts(" One. Two. ", 2, 2) == ["One. Two."]
    assert parts("one two three", 1, 3) == ["one two three"], "a sentence may be longer than several"


def test_a_long_sentence_is_divided_at_punctuation_then_words_then_inside() -> None:
    text = "a b c, d e; f g h i j k l m n oo. P q"
    assert parts(text, 2, 6) == ["a b c, d e;", "f g h i j k", "l m n oo.", "P q"]
    assert parts("abcdefgh ij", 3, 3, letters) == ["ab", "cd", "ef", "gh", "ij"]


def test_what_stays_together_is_divided_only_where_it_is_too_long() -> None:
    text = "One Dot. Com two. Three, four five"
    for most, expected in (
        (9, ["One Dot. Com two.", "Three, four five"]),
        (2, ["One", "Dot. Com", "two.", "Three,", "four five"]),
        (1, ["One", "Dot.", "Com", "two.", "Three,", "four", "five"]),
    ):
        found = divide(text, words, 0, most, [(4, 12)])
        assert [text[slice(*span)] for span in found] == expected


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_and_all_parts_fit(seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(draw.choices("abcA .,;?!。 \u3000é", k=400))
    for count in (words, letters):
        most = draw.randint(1, 9)
        found = parts(text, 0, most, count)
        assert "".join("".join(found).split()) == "".join(text.split())
        assert all(part and part == part.strip() for part in found)
        assert max(count(found)) <= most


def test_a_mark_stays_with_its_letter() -> None:
    found = parts("กี่" * 5, 0, 6, letters)
    assert "".join(found) == "กี่" * 5 and all(part[0] == "ก" for part in found)


@pytest.mark.parametrize("sign", [".", "—", "?)"])
def test_a_long_run_of_marks_takes_no_longer_than_its_length(sign: str) -> None:
    """From each mark of the run to its end, a million marks took hours: the clock of the test is that of all tests."""
    run = 1_000_000 // len(sign) * sign
    assert parts(f"One {run}x two.", 0, 2_000_000, letters) == [f"One {run}x two."]
    assert parts(f"One two {run}x three.", 0, 1, words) == ["One", "two", f"{run}x", "three."]
