"""Words of a tagger against pieces of real tokenizers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenmt.data.tagging import word_alignment
from sparsenmt.data.tagging.word_alignment import WordAlignment, align_words, comparable_text
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE, UNK
from sparsenmt.recipe import schema

LINES = [
    "A man in a blue shirt isn't standing on a ladder, cleaning a window.",
    "The dog's t-shirt (size 10) costs $5.50!",
    "Ein Mädchen läuft über die Straße; „Halt“, ruft es.",
    "ﬁve ½ cups of “Ｗｉｄｅ” café…",
]


def tokenizer(kind: str, lines: list[str] = LINES, **options: object) -> Tokenizer:
    size = 10_000 if kind in ("word", "char") else 90 if kind == "bpe" else 80
    settings = {"kind": kind, "vocabulary_size": size, **options}
    return train_tokenizer(schema.TokenizerSection(**settings), lines)  # type: ignore[arg-type]


def cut(line: str) -> list[str]:
    return re.findall(r"\w+|n't|'s|[^\w\s]", line)


def shown(tokenizer: Tokenizer, line: str, words: list[str]) -> tuple[list[tuple[str, str | None]], WordAlignment]:
    """Every piece with its word."""
    ids = [*tokenizer.encode(line), EOS]
    found = align_words(tokenizer, ids, words)
    pairs = [
        (piece.replace(SPACE, ""), None if word < 0 else words[word])
        for piece, word in zip(tokenizer.pieces(ids), found.words.tolist(), strict=True)
    ]
    assert pairs.pop() == ("</s>", None)
    return pairs, found


def naive(pieces: list[str], words: list[str]) -> list[int]:
    """Give every character of the words to its word, hand them out to the pieces, and let each piece count."""
    owners = [number for number, word in enumerate(words) for _ in comparable_text(word)]
    found = []
    for piece in pieces:
        length = len(comparable_text(piece.replace(SPACE, "")))
        mine, owners = owners[:length], owners[length:]
        found.append(max(sorted(set(mine)), key=mine.count) if mine else -1)
    assert not owners
    return found


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
@pytest.mark.parametrize("line", LINES)
def test_as_counted_naively(kind: str, lowercase: bool, line: str) -> None:
    words = cut(line)
    table = tokenizer(kind, lowercase=lowercase)
    ids = table.encode(line)
    expected = naive(table.pieces(ids), words)
    found = align_words(table, [*ids, EOS], words)
    assert found.words.tolist() == [*expected, -1]
    assert found.later.tolist() == [*(word >= 0 and word in expected[:i] for i, word in enumerate(expected)), False]
    assert found.split.tolist() == [*(word >= 0 and expected.count(word) > 1 for word in expected), False]
    assert (found.word_count, found.unaligned) == (len(words), len(set(range(len(words))) - set(expected)))
    if kind == "char":
        assert found.unaligned == 0


def test_a_golden_alignment() -> None:
    table = {"▁dog": 4, "▁is": 5, "n't": 6, ".": 7, "▁t": 8, "-": 9, "shirt": 10, "▁": 11, "an": 12, "</s>": 3}
    names = {number: piece for piece, number in table.items()}

    class Fixed:
        def pieces(self, ids: list[int]) -> list[str]:
            return [names[int(id_)] for id_ in ids]

    words = ["dog", "is", "n't", "t-shirt", "an", "."]
    ids = [table[piece] for piece in ("▁dog", "▁is", "n't", "▁t", "-", "shirt", "▁", "an", ".", "</s>")]
    found = align_words(Fixed(), ids, words)  # type: ignore[arg-type]
    assert found.words.tolist() == [0, 1, 2, 3, 3, 3, -1, 4, 5, -1]
    assert found.later.tolist() == [False, False, False, False, True, True, False, False, False, False]
    assert found.split.tolist() == [False, False, False, True, True, True, False, False, False, False]
    assert (found.word_count, found.unaligned) == (6, 0)


def test_a_word_tokenizer_holds_several_words_in_a_piece() -> None:
    pairs, found = shown(tokenizer("word"), LINES[1], cut(LINES[1]))
    assert pairs[:3] == [("The", "The"), ("dog's", "dog"), ("t-shirt", "shirt")]
    assert dict(pairs)["(size"] == "size" and dict(pairs)["10)"] == "10"
    assert (found.word_count, found.unaligned) == (len(cut(LINES[1])), len(cut(LINES[1])) - len(pairs))
    assert not found.later.any()


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_unknown_pieces_hide_their_characters(kind: str) -> None:
    small = tokenizer(kind, ["a man is here . a man was here ."] * 3, vocabulary_size=30 if kind == "bpe" else 10_000)
    words = ["a", "zqx", "man", "is", "wyk", "zyz", "here", ".", "xx"]
    ids = [*small.encode(" ".join(words)), EOS]
    assert UNK in ids
    found = align_words(small, ids, words)
    for piece, word in zip(small.pieces(ids), found.words.tolist(), strict=True):
        if piece not in ("<unk>", "</s>", SPACE):
            assert word >= 0 and piece.replace(SPACE, "") in words[word]
        elif piece == "<unk>":
            assert word >= 0 and words[word] in ("zqx", "wyk", "zyz", "xx")


def test_sources_that_were_cut(lines: Callable[..., list[str]]) -> None:
    bpe = tokenizer("bpe", lines(50))
    line = lines(50)[3] + " " + lines(50)[4]
    ids = bpe.encode(line)
    whole = align_words(bpe, ids, line.split())
    for length in range(len(ids)):
        found = align_words(bpe, [*ids[:length], EOS], line.split())
        assert found.words.tolist() == [*whole.words[:length].tolist(), -1]
        assert found.unaligned == 0 and found.word_count == max([-1, *whole.words[:length].tolist()]) + 1


def test_nothing() -> None:
    bpe = tokenizer("bpe")
    for ids, words in (([EOS], []), ([EOS], ["a"]), ([], []), ([*bpe.encode("A man"), EOS], [])):
        found = align_words(bpe, ids, words)
        assert (found.words == -1).all() and not found.later.any() and not found.split.any()
        assert (found.word_count, found.unaligned) == (0, 0)


def test_other_words_than_the_pieces() -> None:
    """What differs is left out, and both sides meet again behind it."""
    words = cut(LINES[0].replace("blue ", "bright red ").replace("a ladder", "ladder"))
    pairs, found = shown(tokenizer("char"), LINES[0], words)
    letters = [(piece, word) for piece, word in pairs if piece]
    right = [word is not None and piece.lower() in word.lower() for piece, word in letters]
    assert all(right[:8]) and all(right[-23:]) and sum(right) > 0.9 * len(right)
    assert letters[-1] == (".", ".") and found.word_count == len(words)


def test_comparable() -> None:
    assert comparable_text("ﬁ½ Straße\u00adn\u200b \t") == comparable_text("FI1⁄2STRASSEN")
    assert comparable_text(" A b\x07") == "ab"


@given(
    st.integers(0, 300), st.text("ab", max_size=200), st.text("ab", max_size=200), st.integers(0, 5), st.integers(0, 5)
)
def test_common_characters_are_counted_to_the_first_difference(
    same: int, left: str, right: str, here: int, there: int
) -> None:
    text, whole = "x" * here + "a" * same + left, "y" * there + "a" * same + right
    found = word_alignment._common(text, here, whole, there)
    mine, theirs = text[here:], whole[there:]
    assert mine[:found] == theirs[:found]
    assert found == min(len(mine), len(theirs)) or mine[found] != theirs[found]


def test_a_comparison_reads_no_more_than_what_agrees() -> None:
    class Counted(str):
        read = 0

        def __getitem__(self, place: object) -> str:
            found = super().__getitem__(place)  # type: ignore[index]
            Counted.read += len(found)
            return found

    text = Counted("ab" * 500_000)
    for here in range(0, 1000, 2):
        word_alignment._common(text, here, "ac" * 500_000, here)
    assert Counted.read < 500 * 200


@pytest.mark.parametrize("line", [*LINES, "é 猫が好き, naïve 🐈 ok"])
def test_bytes_belong_to_the_words_of_their_characters(line: str) -> None:
    words, characters = cut(line), tokenizer("char", [*LINES, line])
    table = tokenizer("byte")
    expected = align_words(characters, characters.encode(line), words).words.tolist()
    of_characters = iter(zip(line, expected, strict=True))
    repeated = [word for character, word in of_characters for _ in character.encode()]
    assert align_words(table, table.encode(line), words).words.tolist() == repeated
