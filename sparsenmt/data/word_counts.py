"""Counts of the words of any amount of text, in bounded memory.

While the distinct words fit, the counts are exact. When they do not, rare words are sampled (priority sampling:
Duffield, Lund and Thorup 2007): every word has a fixed random number u in (0, 1] made from its letters, and it stays
while its count is at least the threshold t times u. So frequent words always stay, a word seen c < t times stays with
the probability c / t, and counts as t: sums over words, such as how often two letters meet, keep their expected value.
What a word counted before it was left out is lost if it comes again later.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

LONGEST_WORD = 256
"""Characters. SentencePiece learns from longer words, as of text without spaces, in parts of this length."""

_SLACK = 1.6  # the table may grow to so many times its limits before it is cut back to them
_BLOCK_LINES, _BLOCK_CHARACTERS = 10_000, 1_000_000


class WordCounts:
    """A table of words and how often each was seen.

    Args:
        words: distinct words that are kept, at most.
        characters: their letters together, at most.
    """

    def __init__(self, *, words: int, characters: int) -> None:
        self._words, self._characters = words, characters
        self._counts: Counter[str] = Counter()
        self._lost: set[str] = set()
        self.threshold = 1.0
        """t of the module's description; 1: all counts are exact."""

    def add(self, words: Iterable[str]) -> None:
        """Count words; as many at a time as lie in memory anyway."""
        self._counts.update(words)
        most = len(self._counts)
        if most > _SLACK * self._words or (
            most * LONGEST_WORD > self._characters and sum(map(len, self._counts)) > _SLACK * self._characters
        ):
            self._cut()

    def most_frequent_first(self) -> list[tuple[str, int]]:
        """The words and their counts; of equally frequent ones the one with the smaller code points comes first."""
        if self.threshold > 1 or len(self._counts) > self._words or sum(map(len, self._counts)) > self._characters:
            self._cut()
        least = round(self.threshold)
        return sorted(((word, max(count, least)) for word, count in self._counts.items()), key=_by_count)

    def lost_characters(self) -> list[str]:
        """Characters of the text that no word of the table holds any more, in order."""
        return sorted(self._lost.difference(*self._counts)) if self._lost else []

    def _cut(self) -> None:
        """Raise the threshold until the table fits its limits."""
        words = list(self._counts)
        counts = np.fromiter(self._counts.values(), dtype=np.float64, count=len(words))
        priorities = counts / _uniform(words)
        order = np.argsort(-priorities, kind="stable")
        sizes = np.cumsum(np.fromiter(map(len, words), dtype=np.int64, count=len(words))[order])
        kept = min(self._words, int(np.searchsorted(sizes, self._characters, side="right")))
        if kept < len(words):
            self.threshold = max(self.threshold, float(priorities[order[kept]]))
        # Words that came after the last cut have to meet the threshold of that one, too.
        for position in np.flatnonzero((priorities <= self.threshold) & (self.threshold > 1)).tolist():
            self._lost.update(words[position])
            del self._counts[words[position]]


def _by_count(entry: tuple[str, int]) -> tuple[int, str]:
    return -entry[1], entry[0]


def _uniform(words: list[str]) -> NDArray[np.float64]:
    """(W,) a number in (0, 1] for each word, always the same for the same word."""
    digests = b"".join(hashlib.blake2b(word.encode("utf-8"), digest_size=4).digest() for word in words)
    return (np.frombuffer(digests, dtype="<u4") + 1.0) / 2.0**32


def blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines in lists of bounded size; a line that is longer than the bound is a list of its own."""
    block: list[str] = []
    size = 0
    for line in lines:
        if block and (len(block) == _BLOCK_LINES or size + len(line) > _BLOCK_CHARACTERS):
            yield block
            block, size = [], 0
        block.append(line)
        size += len(line)
    if block:
        yield block


def parts(word: str) -> Iterator[str]:
    """A word in parts of at most `LONGEST_WORD` characters."""
    for start in range(0, len(word), LONGEST_WORD):
        yield word[start : start + LONGEST_WORD]
