"""The seed tokens from which a unigram vocabulary is trained, counted on words instead of lines of text.

SentencePiece would find them in a suffix array of all lines or, given words with counts, would ignore the counts. A
seed is a part of a word, of at least two characters, that occurs at least twice and is not always followed by the same
character; the seeds that cover the most text are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.splitmix import splitmix64

LONGEST_SEED = 16
"""In characters, as in SentencePiece."""

Array = NDArray[np.int64]


def seed_tokens(words: Sequence[str], counts: Sequence[int], size: int) -> Iterator[tuple[str, int]]:
    """Every character, most frequent first, then the ``size`` best longer seeds; each with its count.

    Args:
        words: distinct words as in SentencePiece: normalised, with U+2581 in front.
        counts: of the words.
    """
    text = np.frombuffer("".join(words).encode("utf-32-le"), dtype="<u4")
    lengths = np.fromiter(map(len, words), dtype=np.int32, count=len(words))
    ends = np.repeat(np.cumsum(lengths, dtype=np.int32), lengths)  # the end of each character's word
    weights = np.repeat(np.asarray(counts, dtype=np.int64), lengths)

    yield from _characters(text, weights)
    best = _BestSeeds(size)
    positions = np.arange(len(text), dtype=np.int32)
    hashes = splitmix64(text.astype(np.uint64))
    shorter = _PartsOfLength(hashes, positions, weights)
    length = 1
    while length < LONGEST_SEED:
        inside = shorter.repeated() & (positions + length < ends[positions])
        parents, positions, hashes = shorter.members[inside], positions[inside], hashes[inside]
        if not len(positions):
            break
        hashes = splitmix64(hashes + text[positions + length])
        level = _PartsOfLength(hashes, positions, weights)
        best.add(shorter, length, level.best_child(parents, len(shorter.counts)))
        shorter, length = level, length + 1
    best.add(shorter, length, np.zeros(len(shorter.counts), dtype=np.int64))
    for position, length, count in best.rows.tolist():
        yield text[position : position + length].tobytes().decode("utf-32-le"), count


class _PartsOfLength:
    """All parts of one length: the part that begins at each position, its count and its first position."""

    def __init__(self, hashes: NDArray[np.uint64], positions: NDArray[np.int32], weights: Array) -> None:
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        ordered = hashes[order]
        new = np.r_[True, ordered[1:] != ordered[:-1]]
        del ordered
        starts = np.flatnonzero(new)
        self.members = np.empty(len(order), dtype=np.int32)
        self.members[order] = np.cumsum(new, dtype=np.int32) - 1
        self.counts: Array = np.add.reduceat(weights[positions[order]], starts)
        # The sort is stable and positions increase: the first of a group is the first in the text.
        self.first: NDArray[np.int32] = positions[order[starts]]

    def repeated(self) -> NDArray[np.bool_]:
        """For each position, True if its part occurs again: only then can a longer one."""
        return (self.counts >= 2)[self.members]

    def best_child(self, parents: NDArray[np.int32], count: int) -> Array:
        """For each of ``count`` shorter parts, the count of its most frequent continuation."""
        best = np.zeros(count, dtype=np.int64)
        parent = np.empty(len(self.counts), dtype=np.int32)
        parent[self.members] = parents
        np.maximum.at(best, parent, self.counts)
        return best


class _BestSeeds:
    """The seeds with the highest scores so far."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.rows: Array = np.zeros((0, 3), dtype=np.int64)  # first position, length, count

    def add(self, level: _PartsOfLength, length: int, best_child: Array) -> None:
        if length == 1:  # all characters are taken
            return
        chosen = np.flatnonzero((level.counts >= 2) & (level.counts > best_child))
        rows = np.empty((len(chosen), 3), dtype=np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = level.first[chosen], length, level.counts[chosen]
        rows = np.concatenate([self.rows, rows])
        self.rows = rows[np.lexsort((rows[:, 0], rows[:, 1], -rows[:, 1] * rows[:, 2]))][: self._size]


def _characters(text: NDArray[np.uint32], weights: Array) -> Iterator[tuple[str, int]]:
    symbols, members = np.unique(text, return_inverse=True)
    counts = np.bincount(members, weights=weights).astype(np.int64)
    for number in np.lexsort((symbols, -counts)).tolist():
        yield chr(int(symbols[number])), int(counts[number])
