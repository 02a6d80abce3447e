"""Words of pieces, against a naive reading of the pieces' names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sparsenmt.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.recipe import schema


def naive(pieces: list[str], kind: str) -> list[int]:
    words, word = [], -1
    for place, piece in enumerate(pieces):
        if place == 0 or piece == "</s>" or piece.startswith(SPACE) or kind == "word":
            word += 1
        words.append(word)
    return words


def tokenizer(kind: str, lines: list[str]) -> Tokenizer:
    return train_tokenizer(schema.TokenizerSection(kind=kind, vocabulary_size=60), lines)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_word_of_each_piece(kind: str, lines: Callable[..., list[str]]) -> None:
    text = lines(200)
    pieces = tokenizer(kind, text)
    for line in text:
        ids = [*pieces.encode(line), EOS]
        found = word_ids(ids, pieces)
        assert found.dtype == np.int64
        assert found.tolist() == naive(pieces.pieces(ids), kind)
        assert found[-1] == len(line.split(" "))
        assert word_ids(ids[:-1], pieces).tolist() == found[:-1].tolist()


def test_edges(lines: Callable[..., list[str]]) -> None:
    pieces = tokenizer("bpe", lines(200))
    assert word_ids([], pieces).tolist() == []
    assert word_ids([EOS], pieces).tolist() == [0]
    inside = int(np.flatnonzero(~pieces.word_starts)[-1])
    assert word_ids([inside, inside, EOS], pieces).tolist() == [0, 0, 1]
    assert word_ids(np.array([inside, EOS], dtype=np.uint16), pieces).tolist() == [0, 1]
