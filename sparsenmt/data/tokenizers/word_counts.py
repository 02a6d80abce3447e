"""Word counts of any amount of text in bounded memory.

The counts are exact while the distinct words fit into the table. Then rare words are sampled (priority sampling:
Duffield, Lund and Thorup 2007): every word has a fixed random number u in (0, 1], a hash of its letters, and stays in
the table while its count is at least u times the threshold t. So frequent words always stay, and a word seen c < t
times stays with probability c / t and then counts as t: sums over words, such as counts of letter pairs, keep their
expected values. If a removed word occurs again, it starts with a count of 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import compress
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.splitmix import splitmix64

LONGEST_WORD = 256
"""In characters. Longer words, as in text without spaces, are split into parts of this length for SentencePiece."""

_SLACK = 2  # growth factor of the table before it is reduced to its limits


class WordCounts:
    """A table of words and their counts.

    Args:
        words: largest number of distinct words.
        characters: largest number of characters of all distinct words.
    """

    def __init__(self, *, words: int, characters: int) -> None:
        self._words, self._characters = words, characters
        self._counts: Counter[str] = Counter()
        self._size = 0  # upper bound of the characters in the table
        self._lost: set[str] = set()
        self.threshold = 1.0
        """The threshold t of the module's description; 1 if all counts are exact."""

    def add(self, words: Iterable[str], characters: int) -> None:
        """Count words.

        Args:
            characters: upper bound of their total length.
        """
        self._counts.update(words)
        self._size += characters
        if self._size > _SLACK * self._characters:
            self._size = sum(map(len, self._counts))
        if len(self._counts) > _SLACK * self._words or self._size > _SLACK * self._characters:
            self._reduce()

    def most_frequent_first(self) -> list[tuple[str, int]]:
        """The words and their counts; ties by code point."""
        self._reduce()
        least = round(self.threshold)
        counts = ((word, max(count, least)) for word, count in self._counts.items())
        return sorted(counts, key=lambda entry: (-entry[1], entry[0]))

    def lost_characters(self) -> list[str]:
        """Sorted characters of the text that are in no word of the table any more."""
        return sorted(self._lost.difference(*self._counts)) if self._lost else []

    def _reduce(self) -> None:
        """Raise the threshold so that the table fits its limits."""
        words = list(self._counts)
        counts = np.fromiter(self._counts.values(), dtype=np.int64, count=len(words))
        lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        priorities = counts / _uniform(words)
        order = np.argsort(-priorities, kind="stable")
        kept = min(self._words, int(np.searchsorted(np.cumsum(lengths[order]), self._characters, side="right")))
        if kept < len(words):
            self.threshold = max(self.threshold, float(priorities[order[kept]]))
        if self.threshold > 1:  # words added since the last reduction must meet its threshold, too
            stay = priorities > self.threshold
            self._lost.update("".join(word for word, stays in zip(words, stay.tolist(), strict=True) if not stays))
            self._counts = Counter(dict(compress(zip(words, counts.tolist(), strict=True), stay.tolist())))
            self._size = int(lengths[stay].sum())


def _uniform(words: list[str]) -> NDArray[np.float64]:
    """(W,) a fixed random number in (0, 1] for each word."""
    checksums = np.fromiter((crc32(word.encode("utf-8")) for word in words), dtype=np.uint32, count=len(words))
    return (splitmix64(checksums.astype(np.uint64)).astype(np.float64) + 1.0) / 2.0**64
