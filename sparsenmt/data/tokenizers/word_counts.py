"""Counts of the words of any amount of text, in bounded memory.

While the distinct words fit, the counts are exact. When they do not, rare words are sampled (priority sampling:
Duffield, Lund and Thorup 2007): every word has a fixed random number u in (0, 1] made from its letters, and it stays
while its count is at least the threshold t times u. So frequent words always stay, a word seen c < t times stays with
the probability c / t, and counts as t: sums over words, such as how often two letters meet, keep their expected value.
What a word counted before it was left out is lost if it comes again later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.hashing import splitmix64

LONGEST_WORD = 256
"""Characters. SentencePiece learns from longer words, as of text without spaces, in parts of this length."""

_SLACK = 2  # the table may grow to so many times its limits before it is cut back to them


class WordCounts:
    """A table of words and how often each was seen.

    Args:
        words: distinct words that are kept, at most.
        characters: their letters together, at most.
    """

    def __init__(self, *, words: int, characters: int) -> None:
        self._words, self._characters = words, characters
        self._counts: Counter[str] = Counter()
        self._size = 0  # letters in the table, at most
        self._lost: set[str] = set()
        self.threshold = 1.0
        """t of the module's description; 1: all counts are exact."""

    def add(self, words: Iterable[str], characters: int) -> None:
        """Count words, as many at a time as lie in memory anyway.

        Args:
            characters: their letters together, at most.
        """
        self._counts.update(words)
        self._size += characters
        if self._size > _SLACK * self._characters:
            self._size = sum(map(len, self._counts))
        if len(self._counts) > _SLACK * self._words or self._size > _SLACK * self._characters:
            self._cut()

    def most_frequent_first(self) -> list[tuple[str, int]]:
        """The words and their counts; of equally frequent ones the one with the smaller code points comes first."""
        self._cut()
        least = round(self.threshold)
        return sorted(((word, max(count, least)) for word, count in self._counts.items()), key=_by_count)

    def lost_characters(self) -> list[str]:
        """Characters of the text that no word of the table holds any more, in order."""
        return sorted(self._lost.difference(*self._counts)) if self._lost else []

    def _cut(self) -> None:
        """Raise the threshold until the table fits its limits."""
        words = list(self._counts)
        counts = np.fromiter(self._counts.values(), dtype=np.int64, count=len(words))
        lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        priorities = counts / _uniform(words)
        order = np.argsort(-priorities, kind="stable")
        kept = min(self._words, int(np.searchsorted(np.cumsum(lengths[order]), self._characters, side="right")))
        if kept < len(words):
            self.threshold = max(self.threshold, float(priorities[order[kept]]))
        if self.threshold > 1:  # words that came after the last cut have to meet the threshold of that one, too
            stay = priorities > self.threshold
            self._lost.update("".join(word for word, stays in zip(words, stay.tolist(), strict=True) if not stays))
            self._counts = Counter(dict(compress(zip(words, counts.tolist(), strict=True), stay.tolist())))
            self._size = int(lengths[stay].sum())


def _by_count(entry: tuple[str, int]) -> tuple[int, str]:
    return -entry[1], entry[0]


def _uniform(words: list[str]) -> NDArray[np.float64]:
    """(W,) a number in (0, 1] for each word, always the same for the same word."""
    checksums = np.fromiter((crc32(word.encode("utf-8")) for word in words), dtype=np.uint32, count=len(words))
    return (splitmix64(checksums.astype(np.uint64)).astype(np.float64) + 1.0) / 2.0**64


def split_long_word(word: str) -> Iterator[str]:
    """A word in parts of at most `LONGEST_WORD` characters."""
    for start in range(0, len(word), LONGEST_WORD):
        yield word[start : start + LONGEST_WORD]
