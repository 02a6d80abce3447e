"""The two sides of a training text, as they are kept with a model: their longest lines, and what tells them apart.

A text that is exchanged for its translation has no unknown tokens if both languages share a script and a vocabulary.
But the words of grammar differ: a token is typical of a side if it is frequent there, and ten times as frequent as on
the other side. Their share of a text says which side it is like, whatever it is about; names and numbers have few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import SPACE, SPECIAL_TOKENS
from sparsenmt.storage.records import Count

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")

_FREQUENT, _TIMES = 0.001, 10  # of the tokens of a side; as frequent as on the other
_LEAST_SHARE = 0.1  # of a side's tokens are typical; fewer do not tell it apart
_COUNTED = 1 << 20  # tokens at once
# A text is like the other side if it has this number of that side's typical tokens, this part of their share in the
# training text, and this multiple of the own side's part. Measured by tests/slow/test_swapped_sides.py.
_LEAST_FOUND, _LEAST_PART, _LEAST_TIMES = 10, 0.15, 3
_READ = 10_000  # tokens of a text are enough


@dataclass(frozen=True)
class CorpusCounts:
    """The tokens of a prepared corpus, counted.

    Args:
        longest: tokens of the longest source and target, `</s>` not counted.
        tokens: (V), (W) occurrences of each token in source and target; none of special ones.
    """

    longest: tuple[int, int]
    tokens: tuple[NDArray[np.int64], NDArray[np.int64]]

    @classmethod
    def of(cls, dataset: Dataset, tokenizers: Tokenizers) -> CorpusCounts:
        """Count a corpus, which may be larger than the memory."""
        longest = (int(each.max(initial=1)) - 1 for each in (dataset.source_lengths, dataset.target_lengths))
        tokens = (
            _counts(ids, tokenizer.size)
            for ids, tokenizer in ((dataset.source_ids, tokenizers.source), (dataset.target_ids, tokenizers.target))
        )
        return cls((next(longest), next(longest)), (next(tokens), next(tokens)))


def _counts(ids: NDArray[np.integer[Any]], size: int) -> NDArray[np.int64]:
    counts = np.zeros(size, np.int64)
    for first in range(0, len(ids), _COUNTED):
        counts += np.bincount(ids[first : first + _COUNTED], minlength=size)
    counts[: len(SPECIAL_TOKENS)] = 0
    return counts


@dataclass(frozen=True)
class TextSides:
    """The sides of a training text.

    Args:
        longest: tokens of the longest source and target, `</s>` and frames not counted.
        typical: tokens that are typical of the source, and of the target; empty where they do not tell them apart.
        shares: theirs of the tokens of source and target.
    """

    longest: tuple[Count, Count]
    typical: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    shares: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, corpora: Sequence[CorpusCounts], tokenizers: Tokenizers, *, apart: bool = True) -> TextSides:
        """Return the sides of counted corpora; ``apart``: they are in different languages."""
        source, target = (max(of_side) for of_side in zip(*(each.longest for each in corpora), strict=True))
        tokens = [np.sum(of_side, axis=0) for of_side in zip(*(each.tokens for each in corpora), strict=True)]
        pair = tokenizers.source, tokenizers.target
        shares = [_shares(counts, tokenizer) for counts, tokenizer in zip(tokens, pair, strict=True)]
        typical = [_typical(own, other) for own, other in (shares, shares[::-1])]
        found = [sum(own[name] for name in names) for own, names in zip(shares, typical, strict=True)]
        if not apart or min(found) < _LEAST_SHARE:
            return cls((source, target))
        return cls((source, target), (typical[0], typical[1]), (found[0], found[1]))

    def at_least(self, other: TextSides | None) -> TextSides:
        """Return these sides with no shorter lines than those of another text, which was learned before."""
        if other is None:
            return self
        source, target = map(max, self.longest, other.longest)
        return TextSides((source, target), self.typical, self.shares)


def _shares(counts: NDArray[np.int64], tokenizer: Tokenizer) -> dict[str, float]:
    """The frequent tokens of a side, and their shares of all that are not special."""
    shares = counts / max(counts.sum(), 1)
    # A token is compared with those of the other side down to the share that still excludes it.
    frequent = np.flatnonzero(shares >= _FREQUENT / _TIMES)
    return dict(zip(tokenizer.pieces(frequent.tolist()), shares[frequent].tolist(), strict=True))


def _typical(own: dict[str, float], other: dict[str, float]) -> list[str]:
    """The typical tokens of a side, except single characters, of which the other side's words may be made."""
    return sorted(
        name
        for name, share in own.items()
        if share >= _FREQUENT and share >= _TIMES * other.get(name, 0) and len(name.strip(SPACE)) > 1
    )


class SideTokens:
    """The typical tokens of either side in the first tokens of a text.

    Args:
        side: of a pair, where the text is given.
    """

    def __init__(self, sides: TextSides | None, tokenizers: Tokenizers, side: Side) -> None:
        own = SIDES.index(side)
        self._sides = sides if sides is not None and all(sides.shares) else None
        self._shared, pair = tokenizers.shared, (tokenizers.source, tokenizers.target)
        self._tokenizers = pair[own], pair[1 - own]
        if self._sides is not None:
            self._typical = [set(self._sides.typical[each]) for each in (own, 1 - own)]
            self._usual = [self._sides.shares[each] for each in (own, 1 - own)]
        self.counts = [0, 0, 0, 0]
        """Tokens that are typical of the own side, and all of it; the same of the other side."""

    def add(self, ids: Sequence[int], text: str) -> None:
        """Read a line, given as the tokens of its side with or without special ones, unless enough was read."""
        if self._sides is None or self.counts[1] >= _READ:
            return
        own, other = self._tokenizers
        names = own.pieces([id_ for id_ in ids if id_ >= len(SPECIAL_TOKENS)])
        others = names if self._shared else other.pieces(other.encode(text))
        for place, (tokens, typical) in enumerate(zip((names, others), self._typical, strict=True)):
            self.counts[2 * place] += sum(name in typical for name in tokens)
            self.counts[2 * place + 1] += len(tokens)

    def merge(self, counts: Sequence[int]) -> None:
        """Add the `counts` of lines that come after these."""
        self.counts = [mine + its for mine, its in zip(self.counts, counts, strict=True)]

    @property
    def parts(self) -> tuple[float, float]:
        """The shares of typical tokens of the own and of the other side, over those of the training text."""
        own, read, other, again = self.counts
        if self._sides is None:
            return 0.0, 0.0
        return own / max(read, 1) / self._usual[0], other / max(again, 1) / self._usual[1]

    @property
    def like_other(self) -> bool:
        """True if the text is like the other side of the training text."""
        own, other = self.parts
        return self.counts[2] >= _LEAST_FOUND and other >= _LEAST_PART and other >= _LEAST_TIMES * own


def is_swapped(dataset: Dataset, sides: TextSides, tokenizers: Tokenizers) -> bool:
    """Return True if both sides of a prepared corpus are like the other one of a training text."""
    return all(_is_like_other(side, dataset, sides, tokenizers) for side in SIDES)


def _is_like_other(side: Side, dataset: Dataset, sides: TextSides, tokenizers: Tokenizers) -> bool:
    found, tokenizer = SideTokens(sides, tokenizers, side), getattr(tokenizers, side)
    for index in range(len(dataset)):
        if found.counts[1] >= _READ:
            break
        ids = getattr(dataset, side)(index).tolist()
        found.add(ids, "" if tokenizers.shared else tokenizer.decode(ids))
    return found.like_other
