"""The quality of a text by blocks of lines, which do not depend on the vocabulary."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from sparsenmt.data.tokenizers.spans import Span
from sparsenmt.data.vocabulary import EOS
from sparsenmt.evaluation.significance import PairedTest, compare_statistics
from sparsenmt.evaluation.text_quality import BLOCK_CHARACTERS, TextQuality, block_qualities, text_statistics
from sparsenmt.metric import TextCounts

RANDOM = np.random.default_rng(3)
LINES = ["ü " * int(length) for length in RANDOM.integers(0, 200, 60)]
ONE_LINE = ["some words " * 3000]
UNSPACED = ["ü" * 4321, "", " a b " + "w" * 2500 + " c"]
TEXTS = pytest.mark.parametrize("lines", [LINES, ONE_LINE, UNSPACED])


def spans(each: int, line: str) -> list[Span]:
    """The tokens of a vocabulary whose tokens have this number of characters."""
    return [(begin, min(begin + each, len(line))) for begin in range(0, len(line), each)]


def tokens(each: int, lines: list[str] = LINES) -> np.ndarray:
    """The ids of these tokens."""
    return np.concatenate([[*(5 for _ in spans(each, line)), EOS] for line in lines])


def divided(each: int, lines: list[str] = LINES, nats: np.ndarray | None = None) -> list[TextQuality]:
    """The blocks of lines in these tokens."""
    ids = tokens(each, lines)
    return block_qualities(np.ones(len(ids)) if nats is None else nats, ids, lines, partial(spans, each))


@TEXTS
@pytest.mark.parametrize("each", [1, 3, 1000])
def test_blocks_lose_nothing(each: int, lines: list[str]) -> None:
    ids = tokens(each, lines)
    nats = RANDOM.random(len(ids))
    blocks = divided(each, lines, nats)
    counts = sum((block.counts for block in blocks), TextCounts())
    words = sum(len(line.split()) + 1 for line in lines)
    assert counts == TextCounts(
        len(ids), sum(len(line) + 1 for line in lines), words, len("\n".join(lines).encode()) + 1
    )
    assert sum(block.nats for block in blocks) == pytest.approx(nats.sum(), rel=1e-12)
    assert all(BLOCK_CHARACTERS <= block.counts.characters < 4 * BLOCK_CHARACTERS for block in blocks[:-1])


@TEXTS
def test_blocks_are_those_of_the_text_whatever_the_vocabulary(lines: list[str]) -> None:
    sizes = [[(block.counts.characters, block.counts.words) for block in divided(each, lines)] for each in (1, 7)]
    assert sizes[0] == sizes[1] and len(sizes[0]) > 3


def test_a_text_in_one_line_has_blocks_of_whole_words() -> None:
    blocks = divided(1, ONE_LINE)
    assert len(blocks) == 32 and all(block.counts.tokens == block.counts.characters for block in blocks)
    assert all(1000 <= block.counts.characters <= 1010 for block in blocks[:-1])


def test_a_token_belongs_to_the_block_where_it_begins() -> None:
    line, first = "x" * 990 + " " + "y" * 20 + " " + "z" * 1500, 1011
    ids = np.array([5, 5, 5, 5, EOS])
    places = [(0, 990), (990, first - 1), (first - 1, first + 3), (first + 3, len(line))]
    for shifted in (0, 1):  # the third token begins in the first block, or at its end
        own = [*places[:2], (first - 1 + shifted, first + 3), places[3]]
        blocks = block_qualities(np.arange(5.0), ids, [line], lambda _, own=own: own)
        assert [block.nats for block in blocks] == ([3.0, 7.0] if not shifted else [1.0, 9.0])


def test_differences_are_tested_on_blocks() -> None:
    lines = LINES * 4
    ids = tokens(1, lines)
    nats = RANDOM.random(len(ids))
    ours, theirs = (text_statistics(divided(1, lines, each), "bpc") for each in (nats + 0.01, nats))
    (found,) = compare_statistics([(ours, theirs)], PairedTest())
    characters = sum(len(line) + 1 for line in lines)
    assert found.baseline.value == pytest.approx(nats.sum() / math.log(2) / characters, rel=1e-9)
    # Every token costs 0.01 nats more, and every character is a token: no sample differs from that.
    assert found.difference.low == pytest.approx(found.difference.high) == pytest.approx(0.01 / math.log(2))
    assert found.p_value < 0.01 and found.sacrebleu_p is None
