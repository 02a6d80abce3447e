"""The quality of a text by blocks of lines, which do not depend on the vocabulary."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparsenmt.data.vocabulary import EOS
from sparsenmt.evaluation.significance import PairedTest, compare_statistics
from sparsenmt.evaluation.text_quality import BLOCK_CHARACTERS, block_qualities, text_statistics
from sparsenmt.metric import TextCounts

RANDOM = np.random.default_rng(3)
LINES = ["ü " * int(length) for length in RANDOM.integers(0, 200, 60)]


def tokens(each: int) -> np.ndarray:
    """Ids of a vocabulary whose tokens have this number of characters."""
    return np.concatenate([[*(5 for _ in range(0, len(line), each)), EOS] for line in LINES])


@pytest.mark.parametrize("each", [1, 3, 1000])
def test_blocks_are_whole_lines_and_lose_nothing(each: int) -> None:
    ids = tokens(each)
    nats = RANDOM.random(len(ids))
    blocks = block_qualities(nats, ids, LINES)
    counts = sum((block.counts for block in blocks), TextCounts())
    words = sum(len(line.split()) + 1 for line in LINES)
    assert counts == TextCounts(
        len(ids), sum(len(line) + 1 for line in LINES), words, len("\n".join(LINES).encode()) + 1
    )
    assert sum(block.nats for block in blocks) == pytest.approx(nats.sum(), rel=1e-12)
    assert all(block.counts.characters >= BLOCK_CHARACTERS for block in blocks[:-1])


def test_blocks_are_those_of_the_text_whatever_the_vocabulary() -> None:
    sizes = [
        [(block.counts.characters, block.counts.words) for block in block_qualities(np.ones(len(ids)), ids, LINES)]
        for ids in (tokens(1), tokens(7))
    ]
    assert sizes[0] == sizes[1] and len(sizes[0]) > 3


def test_differences_are_tested_on_blocks() -> None:
    ids = tokens(1)
    nats = RANDOM.random(len(ids))
    ours, theirs = (text_statistics(block_qualities(each, ids, LINES), "bpc") for each in (nats + 0.01, nats))
    (found,) = compare_statistics([(ours, theirs)], PairedTest())
    characters = sum(len(line) + 1 for line in LINES)
    assert found.baseline.value == pytest.approx(nats.sum() / math.log(2) / characters, rel=1e-9)
    # Every token costs 0.01 nats more, and every character is a token: no sample differs from that.
    assert found.difference.low == pytest.approx(found.difference.high) == pytest.approx(0.01 / math.log(2))
    assert found.p_value < 0.01 and found.sacrebleu_p is None
