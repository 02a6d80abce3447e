"""Words that the recipe makes symbols: one piece in every kind of tokenizer, and themselves again when decoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.data.tokenizers.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE, SPECIAL_TOKENS, UNK
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.errors import UserError
from sparsenmt.recipe import data_checks, schema

KINDS = ("bpe", "unigram", "char", "word", "byte")
SYMBOLS = ["<n>", "<doc>", "#P1#", "a,b", "|"]
Lines = Callable[..., list[str]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def trained(kind: str, lines: list[str], symbols: list[str] = SYMBOLS, **options: object) -> Tokenizer:
    size = options.pop("vocabulary_size", 90 if kind != "word" else 1000)
    options = {"kind": kind, "vocabulary_size": size, "user_symbols": symbols, **options}
    return train_tokenizer(schema.TokenizerSection.model_validate(options), lines)


def name(kind: str, symbol: str) -> str:
    """What the piece of a symbol between spaces is called: SentencePiece's has the space in it."""
    return f"{SPACE}{symbol}" if kind in ("bpe", "unigram") else symbol


def marked(lines: list[str]) -> list[str]:
    """Every symbol somewhere: at the beginning, inside, at the end, twice in a row."""
    return [f"<n> {line} <doc> #P1# {line} a,b | | {line} <n>" for line in lines]


@pytest.mark.parametrize("seen", [True, False], ids=["in the training text", "never seen"])
def test_a_symbol_is_one_piece_and_comes_back(kind: str, seen: bool, lines: Lines, tmp_path: Path) -> None:
    text = marked(lines(50))
    trained(kind, lines(300) + (text if seen else [])).save(tmp_path, "x")
    tokenizer = load_tokenizer(tmp_path, "x")
    for line, ids in zip(text, tokenizer.encode_batch(text), strict=True):
        pieces = tokenizer.pieces(ids)
        for symbol in SYMBOLS:
            assert pieces.count(name(kind, symbol)) == line.split(" ").count(symbol)
        assert UNK not in ids
        assert tokenizer.decode(ids) == line


def test_a_symbol_is_a_word(kind: str, lines: Lines) -> None:
    tokenizer = trained(kind, lines(300))
    line = marked(lines(1))[0]
    words = word_ids([*tokenizer.encode(line), EOS], tokenizer)
    assert words[-1] == len(line.split(" "))


def test_symbols_take_no_room_from_other_words(kind: str, lines: Lines) -> None:
    """What is learned from the text around markers is what would be learned without them."""
    text = lines(300)
    plain = trained(kind, [f"{line} {line}" for line in text])
    other = trained(kind, [f"{line} <n> <doc> {line} <n>" for line in text])
    assert plain.encode_batch(text) == other.encode_batch(text)
    assert plain.pieces(range(plain.size)) == other.pieces(range(other.size))


def test_the_same_without_symbols(kind: str, lines: Lines, tmp_path: Path) -> None:
    whole = {"kind": kind, "vocabulary_size": 60}
    for folder, options in (("a", whole), ("b", {**whole, "user_symbols": []})):
        (tmp_path / folder).mkdir()
        train_tokenizer(schema.TokenizerSection.model_validate(options), lines(300)).save(tmp_path / folder, "x")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_parts_of_words_are_no_symbols(kind: str) -> None:
    text = ["is a<n>b or <n>c or <n<n>>"] * 3
    tokenizer = trained(kind, text, ["<n>"], vocabulary_size=20)
    ids = tokenizer.encode(text[0])
    assert tokenizer.decode(ids) == text[0]
    glued = tokenizer.pieces(ids).count(name(kind, "<n>"))
    # SentencePiece finds it where a word begins with it, too.
    assert glued == (1 if kind in ("bpe", "unigram") else 0)


def test_symbols_count_in_the_vocabulary_size(lines: Lines) -> None:
    for kind in ("bpe", "char"):
        assert trained(kind, lines(300), vocabulary_size=40 if kind == "bpe" else 12).size == (40, 12)[kind == "char"]
    with pytest.raises(UserError, match="special tokens and the user symbols"):
        trained("char", lines(300), vocabulary_size=4 + len(SYMBOLS))
    with pytest.raises(UserError, match="cannot hold the characters of the text") as caught:
        trained("bpe", lines(300), vocabulary_size=4 + len(SYMBOLS))
    assert caught.value.hint is not None
    smallest = int(caught.value.hint.split(";")[0].split()[-1])
    assert trained("bpe", lines(300), vocabulary_size=smallest).size == smallest


def test_a_text_of_nothing_but_symbols(kind: str) -> None:
    if kind in ("char", "word", "byte"):
        tokenizer = trained(kind, ["<n> <n>"], ["<n>"])
        assert tokenizer.decode(tokenizer.encode("<n> <n>")) == "<n> <n>"
    else:
        with pytest.raises(UserError, match="there is no text to learn"):
            trained(kind, ["<n> <n>"], ["<n>"])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_symbol_that_normalisation_changes_is_refused(kind: str, lines: Lines) -> None:
    with pytest.raises(UserError, match="turns the symbol '①' into '1'") as caught:
        trained(kind, lines(300), ["<n>", "①"])
    assert caught.value.where == "data.tokenizer.user_symbols.1"
    tokenizer = trained(kind, lines(300), ["<n>", "①"], normalization="identity")
    assert tokenizer.pieces(tokenizer.encode("①")) == [f"{SPACE}①"]


def test_lowercase(kind: str, lines: Lines) -> None:
    tokenizer = trained(kind, [line.upper() for line in lines(300)], ["<n>"], lowercase=True)
    assert tokenizer.pieces(tokenizer.encode("<N> <n>")) == [
        name(kind, "<n>"),
        *([SPACE] if kind in ("char", "byte") else []),
        name(kind, "<n>"),
    ]


def test_recipes_know_the_special_pieces() -> None:
    assert data_checks._SPECIAL == SPECIAL_TOKENS and data_checks._RESERVED == SPACE
