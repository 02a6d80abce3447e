"""Translations of single tokens, learned from a parallel text: IBM Model 1 (Brown et al. 1993), or given alignments.

t(y | x) is the probability that a source token x has the translation y. Expectation maximisation begins with the same
probability for all y. A token y of a target comes from each token x of its source, or from none, with probability
t(y | x) / sum_x' t(y | x'); the new t are these expected counts, normalised by source token.
Shapes: P pairs of tokens that occur in one sentence pair; V and W tokens of the source and the target vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.vocabulary import EOS, PAD

Ids = Sequence[int]
_PAIRS = 1 << 22  # of tokens that are counted at once
_NONE = PAD  # the source token of translations that come from no token: padding occurs in no text


@dataclass(frozen=True)
class TranslationTable:
    """Source and target tokens (P), by source token, and t(target | source)."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def best(self, count: int, source_size: int) -> list[list[int]]:
        """Return the most probable translations of each source token; of equal ones, the first ids."""
        order = np.lexsort((self.target, -self.probabilities, self.source))
        source, target = self.source[order], self.target[order]
        begins = np.searchsorted(source, np.arange(source_size + 1))
        return [target[a : min(a + count, b)].tolist() for a, b in pairwise(begins)]


def translation_table(pairs: Sequence[tuple[Ids, Ids]], target_size: int, rounds: int = 5) -> TranslationTable:
    """Estimate IBM Model 1 on sentence pairs, given as ids without `</s>`."""
    blocks = list(_blocks(pairs))
    keys = np.empty(0, np.int64)
    for block in blocks:
        keys = np.union1d(keys, _pair_keys(block, target_size)[0])
    source = keys // target_size
    table = np.ones(len(keys))
    for _ in range(rounds):
        counts = np.zeros(len(keys))
        for block in blocks:
            own, positions = _pair_keys(block, target_size)
            places = np.searchsorted(keys, own)
            given = table[places]
            shares = given / np.bincount(positions, given)[positions]
            counts += np.bincount(places, shares, len(keys))
        table = counts / np.bincount(source, counts)[source]
    real = source != _NONE
    return TranslationTable(source[real], keys[real] % target_size, table[real])


def _blocks(pairs: Sequence[tuple[Ids, Ids]]) -> Iterator[Sequence[tuple[Ids, Ids]]]:
    """Sentence pairs in blocks of a bounded number of pairs of tokens."""
    first, count = 0, 0
    for number, (source, target) in enumerate(pairs):
        more = (len(source) + 1) * len(target)
        if count and count + more > _PAIRS:
            yield pairs[first:number]
            first, count = number, 0
        count += more
    yield pairs[first:]


def _pair_keys(block: Sequence[tuple[Ids, Ids]], target_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each target position with each source token of its sentence, and with none: keys, and numbers of positions."""
    sources = np.array([id_ for source, _ in block for id_ in (_NONE, *source)], np.int64)
    targets = np.array([id_ for _, target in block for id_ in target], np.int64)
    lengths = np.array([len(source) + 1 for source, _ in block], np.int64)
    counts = np.array([len(target) for _, target in block], np.int64)
    widths = np.repeat(lengths, counts)  # of each target position
    begins = np.repeat(np.cumsum(lengths) - lengths, counts)
    positions = np.repeat(np.arange(len(targets)), widths)
    ends = np.cumsum(widths)
    places = np.arange(len(positions)) - np.repeat(ends - widths, widths) + np.repeat(begins, widths)
    return sources[places] * target_size + targets[positions], positions


def aligned_table(
    pairs: Iterable[tuple[Ids, Ids]], alignments: Iterable[Sequence[tuple[int, int]]], target_size: int
) -> TranslationTable:
    """Count aligned tokens: t(y | x) is the share of the tokens aligned with x that are y."""
    links = [
        source[i] * target_size + target[j]
        for (source, target), places in zip(pairs, alignments, strict=True)
        for i, j in places
    ]
    keys, counts = np.unique(np.array(links, np.int64), return_counts=True)
    source = keys // target_size
    return TranslationTable(source, keys % target_size, counts / np.maximum(np.bincount(source, counts)[source], 1))


def most_frequent(sentences: Iterable[Ids], size: int, count: int) -> list[int]:
    """Return the most frequent tokens; of equally frequent ones, the first ids. `</s>` is one of each sentence."""
    counts = np.zeros(size, np.int64)
    for ids in sentences:
        np.add.at(counts, [*ids, EOS], 1)
    order = np.lexsort((np.arange(size), -counts))
    return [int(id_) for id_ in order[:count] if counts[id_]]
