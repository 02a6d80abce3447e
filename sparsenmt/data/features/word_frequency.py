"""Frequency ranks of words in tokenized text.

A word is a sequence of tokens that `word_boundaries` calls a word, without the punctuation marks at its two ends: each
token of these is a word of its own, as in text that was tokenized by rules, where punctuation marks are among the most
frequent words. "dog." counts as "dog" and ".", "t-shirt" as one word. A leading space symbol does not count, and the
same letters are the same word however they are split into tokens.

A word is represented by a 64-bit hash of its letters, so that counting millions of words takes a few tens of megabytes
and no Python object per word: with 10 million distinct words, the probability of a collision is about 3 in a million.

Up to a million distinct words the counts are exact. With more, only the most frequent million is kept whenever the
table has grown to twice as many: the count of a rare word may then be too low, or the word may have no rank.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.splitmix import splitmix64
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE, SPECIAL_TOKENS, UNK
from sparsenmt.data.word_boundaries import word_start_mask

_BLOCK = 1 << 18  # tokens read at once
_WORDS = 1 << 20  # distinct words that are kept
_PENDING = 1 << 19  # largest number of distinct words that wait to be merged
_WHOLE = 10_000  # coverage of all words


class WordRanks:
    """Ranks of words by frequency, 1 = most frequent; ties by first occurrence.

    Args:
        hashes: (W,) the words, most frequent first; see `count_words`.
        tokenizer: the source's.
    """

    def __init__(self, hashes: NDArray[np.uint64], tokenizer: Tokenizer) -> None:
        order = np.argsort(hashes)
        self._sorted = hashes[order]
        self._ranks = (order + 1).astype(np.int64)
        self._tokens = _TokenTable(tokenizer)

    def __len__(self) -> int:
        """Number of known words."""
        return len(self._ranks)

    def ranks(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(S,) the rank of each token's word; ``len(self) + 1`` for unknown words, 0 for EOS.

        Args:
            ids: (S,) of one sentence or of several, each ended by EOS.
        """
        if not len(ids):
            return np.zeros(0, dtype=np.int64)
        words = _WordRuns(ids, self._tokens)
        ranks = np.full(len(words.hashes), len(self) + 1, dtype=np.int64)
        if len(self):
            places = np.minimum(np.searchsorted(self._sorted, words.hashes), len(self) - 1)
            known = (self._sorted[places] == words.hashes) & words.countable
            ranks[known] = self._ranks[places[known]]
        ranks[words.is_end] = 0
        return np.repeat(ranks, words.lengths)


def rank_coverage(counts: NDArray[np.uint64]) -> NDArray[np.int64]:
    """(W + 2,) the share of all counted words, in 1/10,000 and rounded down, that are of this rank or more frequent.

    Rank 0, of EOS, has 0; rank W + 1, of unknown words, has 10,000.

    Args:
        counts: (W,) of the words, most frequent first.
    """
    covered = np.cumsum(counts.astype(np.float64)) * _WHOLE / max(int(counts.sum()), 1)
    coverage: NDArray[np.int64] = np.r_[0, np.floor(covered + 1e-6).astype(np.int64), _WHOLE]
    return coverage


def count_words(corpora: Sequence[Dataset], tokenizer: Tokenizer) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Count the words of the sources: (W,) their hashes, most frequent first, and (W,) their counts."""
    counter = _HashCounter()
    table = _TokenTable(tokenizer)
    for corpus in corpora:
        for first, last in corpus.spans(_BLOCK):
            ids = corpus.source_ids[corpus.source_offsets[first] : corpus.source_offsets[last]].astype(np.int64)
            words = _WordRuns(ids, table)
            counter.add(words.hashes[words.countable])
    hashes, counts = counter.most_frequent_first()
    return hashes, counts.astype(np.uint64)


class _TokenTable:
    """Properties of the tokens of a vocabulary: word starts, punctuation marks, the space symbol, and the letters of
    each token without space symbols: ``letters[offsets[i] : offsets[i] + lengths[i]]``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        names = tokenizer.pieces(range(tokenizer.size))
        self.word_starts = tokenizer.word_starts
        self.space = names.index(SPACE) if SPACE in names else -1
        self.marks = np.array([_is_mark(name) for name in names], dtype=np.bool_)
        self.marks[: len(SPECIAL_TOKENS)] = False
        texts = [name.replace(SPACE, "") for name in names]
        self.lengths = np.array([len(text) for text in texts], dtype=np.int64)
        self.offsets = np.cumsum(self.lengths) - self.lengths
        self.letters = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4").astype(np.uint64)


def _is_mark(name: str) -> bool:
    """True if a token consists of punctuation marks and symbols only."""
    text = name.replace(SPACE, "")
    return bool(text) and all(unicodedata.category(character)[0] in "PS" for character in text)


class _WordRuns:
    """The words of sentences that each end with EOS: (W,) hashes and lengths in tokens."""

    def __init__(self, ids: NDArray[np.int64], table: _TokenTable) -> None:
        starts = word_start_mask(ids, table.word_starts)
        starts[:1] = True
        starts = _with_marks_apart(ids, starts, table)
        first = np.flatnonzero(starts)
        self.lengths = np.diff(first, append=len(ids))
        sums, letters = _letter_sums(ids, first, table)
        self.hashes: NDArray[np.uint64] = sums
        self.is_end = ids[first] == EOS
        has_unknown = np.logical_or.reduceat(ids == UNK, first)
        self.countable = ~self.is_end & ~has_unknown & (letters > 0)


def _letter_sums(
    ids: NDArray[np.int64], first: NDArray[np.int64], table: _TokenTable
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """(W,) the hashes of words that begin at these tokens, sums over their letters; (W,) the numbers of letters."""
    lengths = table.lengths[ids]
    ends = np.cumsum(lengths)
    begins = ends - lengths  # the position of each token's first letter in the block
    position = np.arange(ends[-1])
    letters = table.letters[position + np.repeat(table.offsets[ids] - begins, lengths)]
    last = np.append(first[1:], len(ids)) - 1
    counts = ends[last] - begins[first]
    within = position - np.repeat(begins[first], counts)
    sums = np.append(np.uint64(0), np.cumsum(splitmix64(letters + (within.astype(np.uint64) << np.uint64(32)))))
    return sums[ends[last]] - sums[begins[first]], counts


def _with_marks_apart(ids: NDArray[np.int64], starts: NDArray[np.bool_], table: _TokenTable) -> NDArray[np.bool_]:
    """(N,) the word starts if punctuation marks at the two ends of a word are words of their own."""
    marks = table.marks[ids]
    if not marks.any():
        return starts
    first = np.flatnonzero(starts)
    lengths = np.diff(first, append=len(ids))
    spaces = starts & (ids == table.space)
    inner = (~marks & ~spaces).astype(np.int64)
    before = np.cumsum(inner) - inner
    left = before - np.repeat(before[first], lengths)  # inner tokens of the word to the left of each token
    right = np.repeat(np.add.reduceat(inner, first), lengths) - left - inner
    outer = marks & ((left == 0) | (right == 0))
    result = outer.copy()
    result[1:] |= outer[:-1]
    result[1:] &= ~spaces[:-1]  # a leading space stays with the following token
    joined: NDArray[np.bool_] = result | starts
    return joined


class _HashCounter:
    """Counts and first occurrences of hashes. New hashes are merged when they outnumber the old ones."""

    def __init__(self) -> None:
        self._hashes = np.zeros(0, dtype=np.uint64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._first = np.zeros(0, dtype=np.int64)
        self._seen = 0
        self._pending: list[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]] = []
        self._pending_size = 0

    def add(self, hashes: NDArray[np.uint64]) -> None:
        unique, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        self._pending.append((unique, counts, first + self._seen))
        self._pending_size += len(unique)
        self._seen += len(hashes)
        if self._pending_size > min(max(len(self._hashes), _BLOCK), _PENDING):
            self._merge()

    def most_frequent_first(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        self._merge()
        order = np.lexsort((self._first, -self._counts))
        return self._hashes[order], self._counts[order]

    def _merge(self) -> None:
        """Merge the pending words, and keep the most frequent `_WORDS`."""
        parts = [(self._hashes, self._counts, self._first), *self._pending]
        hashes, counts, first = (np.concatenate(column) for column in zip(*parts, strict=True))
        if len(hashes):
            order = np.argsort(hashes, kind="stable")
            hashes, counts, first = hashes[order], counts[order], first[order]
            groups = np.flatnonzero(np.r_[True, hashes[1:] != hashes[:-1]])
            # Parts are in order of time and the sort is stable: the first of a group occurred first.
            self._hashes, self._first = hashes[groups], first[groups]
            self._counts = np.add.reduceat(counts, groups)
        if len(self._hashes) > _WORDS:
            kept = np.sort(np.lexsort((self._first, -self._counts))[:_WORDS])
            self._hashes, self._counts, self._first = self._hashes[kept], self._counts[kept], self._first[kept]
        self._pending, self._pending_size = [], 0
