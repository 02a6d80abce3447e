"""Frequency ranks of words in tokenized text.

A word is a run of pieces; a lone space symbol at its front does not count, or the first word of a sentence would differ
from the same word elsewhere when pieces are characters. A word is known by a 64-bit hash of its pieces, so that
counting millions of words takes a few tens of megabytes and no Python object per word: with 10 million distinct words,
two share a hash with a probability of about 3 in a million.

Up to a million distinct words the counts are exact. Of more, only the most frequent million is kept whenever the table
has grown to twice as many: a rare word may then miss some of its counts, or have no rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.alignment import starts_of_words
from sparsenmt.data.hashing import spread
from sparsenmt.data.store import Dataset
from sparsenmt.data.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE, UNK
from sparsenmt.errors import UserError
from sparsenmt.files import write_bytes

_BLOCK = 1 << 18  # pieces read at once
_WORDS = 1 << 20  # distinct words that are kept
_PENDING = 1 << 19  # distinct words of blocks that wait to be merged, at most
_STORED = np.dtype("<u8")


class WordRanks:
    """Ranks of words by frequency, 1 = most frequent; of equally frequent ones the word seen first comes first.

    Args:
        hashes: (W,) the words, most frequent first.
        tokenizer: the source's.
    """

    def __init__(self, hashes: NDArray[np.uint64], tokenizer: Tokenizer) -> None:
        self._hashes = hashes
        order = np.argsort(hashes)
        self._sorted = hashes[order]
        self._ranks = (order + 1).astype(np.int64)
        self._tokenizer = tokenizer
        self._space = _space_id(tokenizer)

    @classmethod
    def fit(cls, corpora: Sequence[Dataset], tokenizer: Tokenizer) -> WordRanks:
        """Count the words of the sources."""
        counter = _Counter()
        space = _space_id(tokenizer)
        for ids in _blocks(corpora):
            words = _Words(ids, tokenizer.word_starts, space)
            counter.add(words.hashes[words.countable])
        return cls(counter.most_frequent_first(), tokenizer)

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> WordRanks:
        """Read what `save` wrote.

        Raises:
            UserError: the file is missing.
        """
        try:
            return cls(np.fromfile(path, dtype=_STORED).astype(np.uint64), tokenizer)
        except OSError as error:
            raise UserError(
                f"cannot be read: {error.strerror}",
                where=str(path),
                hint="Take the directory from a copy, or make it again.",
            ) from None

    def save(self, path: Path) -> None:
        """Write the hashes, most frequent first."""
        write_bytes(path, self._hashes.astype(_STORED).tobytes())

    def __len__(self) -> int:
        """Number of known words."""
        return len(self._hashes)

    def ranks(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(S,) the rank of each piece's word; ``len(self) + 1`` for unknown words, 0 for EOS.

        Args:
            ids: (S,) of one sentence or of several, each ended by EOS.
        """
        if not len(ids):
            return np.zeros(0, dtype=np.int64)
        words = _Words(ids, self._tokenizer.word_starts, self._space)
        ranks = np.full(len(words.hashes), len(self) + 1, dtype=np.int64)
        if len(self):
            places = np.minimum(np.searchsorted(self._sorted, words.hashes), len(self) - 1)
            known = (self._sorted[places] == words.hashes) & words.countable
            ranks[known] = self._ranks[places[known]]
        ranks[words.is_end] = 0
        return np.repeat(ranks, words.lengths)


class _Words:
    """The words of sentences that each end with EOS: their hashes and lengths, all (W,)."""

    def __init__(self, ids: NDArray[np.int64], word_starts: NDArray[np.bool_], space: int) -> None:
        starts = starts_of_words(ids, word_starts)
        starts[:1] = True
        first = np.flatnonzero(starts)
        self.lengths = np.diff(first, append=len(ids))
        begins_with_space = ids[first] == space
        place = np.arange(len(ids)) - np.repeat(first + begins_with_space, self.lengths)
        mixed = spread(ids.astype(np.uint64) + (place.astype(np.uint64) << np.uint64(32)))
        mixed[first[begins_with_space]] = 0
        self.hashes: NDArray[np.uint64] = np.add.reduceat(mixed, first)
        self.is_end = ids[first] == EOS
        has_unknown = np.logical_or.reduceat(ids == UNK, first)
        is_blank = begins_with_space & (self.lengths == 1)
        self.countable = ~self.is_end & ~has_unknown & ~is_blank


def _space_id(tokenizer: Tokenizer) -> int:
    """The id of the piece that is nothing but a space; -1 if there is none."""
    pieces = tokenizer.pieces(range(tokenizer.size))
    return pieces.index(SPACE) if SPACE in pieces else -1


class _Counter:
    """Counts of hashes, and when each was seen first. New ones are merged in when they outnumber the old."""

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
            self._keep_most_frequent()

    def most_frequent_first(self) -> NDArray[np.uint64]:
        self._merge()
        self._keep_most_frequent()
        return self._hashes[np.lexsort((self._first, -self._counts))]

    def _keep_most_frequent(self) -> None:
        if len(self._hashes) > _WORDS:
            kept = np.sort(np.lexsort((self._first, -self._counts))[:_WORDS])
            self._hashes, self._counts, self._first = self._hashes[kept], self._counts[kept], self._first[kept]

    def _merge(self) -> None:
        parts = [(self._hashes, self._counts, self._first), *self._pending]
        hashes, counts, first = (np.concatenate(column) for column in zip(*parts, strict=True))
        if len(hashes):
            order = np.argsort(hashes, kind="stable")
            hashes, counts, first = hashes[order], counts[order], first[order]
            groups = np.flatnonzero(np.r_[True, hashes[1:] != hashes[:-1]])
            # Parts are in the order of time and the sort is stable: the first of a group was seen first.
            self._hashes, self._first = hashes[groups], first[groups]
            self._counts = np.add.reduceat(counts, groups)
        self._pending, self._pending_size = [], 0


def _blocks(corpora: Sequence[Dataset]) -> Iterator[NDArray[np.int64]]:
    """The source ids of all corpora in blocks of whole sentences."""
    for corpus in corpora:
        for first, last in corpus.spans(_BLOCK):
            yield corpus.source_ids[corpus.source_offsets[first] : corpus.source_offsets[last]].astype(np.int64)
