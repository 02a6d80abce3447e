"""Encoding lines word by word, each frequent word once: text repeats its words, and pieces do not reach over spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_WORDS = 60_000  # of one generation: some 15 MB
_LONGEST = 64  # characters; longer words are not kept


class WordCache:
    """The ids of the words that were met last.

    There are two generations: when the younger one is full, it becomes the older one, whose words are gone unless they
    were met since.

    Args:
        encode: the ids of each of several words.
    """

    def __init__(self, encode: Callable[[list[str]], list[list[int]]]) -> None:
        self._encode = encode
        self._young: dict[str, Sequence[int]] = {}
        self._old: dict[str, Sequence[int]] = {}

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of lines, whose words are split at U+0020."""
        rows = [line.split(" ") for line in lines]
        found = self._find(set().union(*rows))
        encoded = []
        for row in rows:
            ids: list[int] = []
            for word in row:
                ids += found[word]
            encoded.append(ids)
        return encoded

    def _find(self, words: set[str]) -> dict[str, Sequence[int]]:
        """The ids of every word."""
        old, young = self._old, self._young
        found: dict[str, Sequence[int]] = {}
        missing = []
        for word in words:
            ids = young.get(word)
            if ids is None:
                ids = old.get(word)
                if ids is None:
                    missing.append(word)
                    continue
                young[word] = ids
            found[word] = ids
        for word, new in zip(missing, self._encode(missing), strict=True):
            found[word] = new
            if len(word) <= _LONGEST:
                young[word] = tuple(new)
        if len(young) > _WORDS:
            self._old, self._young = young, {}
        return found
