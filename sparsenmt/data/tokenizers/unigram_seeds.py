"""The pieces that the training of a unigram vocabulary starts from, counted in words instead of lines of text.

SentencePiece can find them by itself, but in a suffix array of all lines, and, given words and their counts, without
regard to the counts. A seed is a part of a word, of two characters or more, that occurs twice or more and that is not
always followed by the same character; those that cover the most text are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.hashing import splitmix64

LONGEST_PIECE = 16
"""Characters, as SentencePiece sets it."""

Array = NDArray[np.int64]


def seed_tokens(words: Sequence[str], counts: Sequence[int], size: int) -> Iterator[tuple[str, int]]:
    """Every character, most frequent first, then the ``size`` best longer pieces; each with how often it occurs.

    Args:
        words: distinct, as SentencePiece sees them: normalised, with U+2581 in front.
        counts: how often each was seen.
    """
    text = np.frombuffer("".join(words).encode("utf-32-le"), dtype="<u4")
    lengths = np.fromiter(map(len, words), dtype=np.int32, count=len(words))
    ends = np.repeat(np.cumsum(lengths, dtype=np.int32), lengths)  # where the word of each character ends
    weights = np.repeat(np.asarray(counts, dtype=np.int64), lengths)

    yield from _characters(text, weights)
    best = _Best(size)
    places = np.arange(len(text), dtype=np.int32)
    hashes = splitmix64(text.astype(np.uint64))
    shorter = _Level.of(hashes, places, weights)
    length = 1
    while length < LONGEST_PIECE:
        inside = shorter.repeated() & (places + length < ends[places])
        parents, places, hashes = shorter.members[inside], places[inside], hashes[inside]
        if not len(places):
            break
        hashes = splitmix64(hashes + text[places + length])
        level = _Level.of(hashes, places, weights)
        best.add(shorter, length, level.best_child(parents, len(shorter.counts)))
        shorter, length = level, length + 1
    best.add(shorter, length, np.zeros(len(shorter.counts), dtype=np.int64))
    for place, length, count in best.chosen():
        yield text[place : place + length].tobytes().decode("utf-32-le"), count


class _Level:
    """All parts of one length: which part begins at each place, how often each occurs, and where first."""

    def __init__(self, members: NDArray[np.int32], counts: Array, first: NDArray[np.int32]) -> None:
        self.members, self.counts, self.first = members, counts, first

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], places: NDArray[np.int32], weights: Array) -> _Level:
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        ordered = hashes[order]
        new = np.r_[True, ordered[1:] != ordered[:-1]]
        del ordered
        starts = np.flatnonzero(new)
        members = np.empty(len(order), dtype=np.int32)
        members[order] = np.cumsum(new, dtype=np.int32) - 1
        # The sort is stable and places rise: the first of a group lies first in the text.
        return cls(members, np.add.reduceat(weights[places[order]], starts), places[order[starts]])

    def repeated(self) -> NDArray[np.bool_]:
        """For each place, whether its part occurs again: only then can a longer one."""
        return (self.counts >= 2)[self.members]

    def best_child(self, parents: NDArray[np.int32], count: int) -> Array:
        """For each of ``count`` shorter parts, how often its most frequent continuation occurs."""
        best = np.zeros(count, dtype=np.int64)
        parent = np.empty(len(self.counts), dtype=np.int32)
        parent[self.members] = parents
        np.maximum.at(best, parent, self.counts)
        return best


class _Best:
    """The pieces with the largest scores so far."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows = np.zeros((0, 3), dtype=np.int64)  # first place, length, count

    def add(self, level: _Level, length: int, best_child: Array) -> None:
        if length == 1:  # characters are no matter of choice
            return
        chosen = np.flatnonzero((level.counts >= 2) & (level.counts > best_child))
        rows = np.empty((len(chosen), 3), dtype=np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = level.first[chosen], length, level.counts[chosen]
        self._rows = self._sorted(np.concatenate([self._rows, rows]))[: self._size]

    def chosen(self) -> list[list[int]]:
        rows: list[list[int]] = self._rows.tolist()
        return rows

    @staticmethod
    def _sorted(rows: Array) -> Array:
        return rows[np.lexsort((rows[:, 0], rows[:, 1], -rows[:, 1] * rows[:, 2]))]


def _characters(text: NDArray[np.uint32], weights: Array) -> Iterator[tuple[str, int]]:
    symbols, members = np.unique(text, return_inverse=True)
    counts = np.bincount(members, weights=weights).astype(np.int64)
    for number in np.lexsort((symbols, -counts)).tolist():
        yield chr(int(symbols[number])), int(counts[number])
