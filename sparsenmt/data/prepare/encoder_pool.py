"""Sentence pairs as token ids, encoded and filtered block by block, in this process or in several.

Blocks come back in order, so the prepared data do not depend on the number of processes. The processes are new ones
(spawn), since this one may have threads, and read the tokenizers from files.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import PackedSentences
from sparsenmt.data.prepare.filters import EncodedPairs, FilterCounts, apply_filters, truncate_sources
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

Rows = list[tuple[str, ...]]
"""Sources and targets of successive lines."""
_AHEAD = 2  # blocks of each process that are encoded or wait for it


@dataclass(frozen=True)
class EncodedBlock:
    """The pairs of a block that the filters keep, and what was counted."""

    source: PackedSentences
    target: PackedSentences
    lines: NDArray[np.int64]
    counts: FilterCounts


@dataclass(frozen=True)
class BlockEncoder:
    """Encodes and filters the pairs of a block.

    Args:
        keeps_all: True: sources are cut, and no pair is removed, as of the validation text.
        single: True: use one thread.
    """

    tokenizers: Tokenizers
    filters: schema.Filters
    keeps_all: bool
    single: bool = False

    def pairs(self, rows: Rows, first: int, counts: FilterCounts) -> EncodedPairs:
        """Return the pairs that are kept, of lines from number ``first`` on; updates ``counts``."""
        sides = []
        for side, tokenizer in enumerate((self.tokenizers.source, self.tokenizers.target)):
            texts = [row[side] for row in rows]
            # A call for each line, unlike one for all, never starts threads.
            sides.append([tokenizer.encode(text) for text in texts] if self.single else tokenizer.encode_batch(texts))
        found = EncodedPairs(sides[0], sides[1], range(first, first + len(rows)))
        if self.keeps_all:
            return truncate_sources(found, self.filters.max_source_length, counts)
        return apply_filters(found, self.filters, counts)

    def block(self, rows: Rows, first: int) -> EncodedBlock:
        """Return the block, packed."""
        counts = FilterCounts()
        pairs = self.pairs(rows, first, counts)
        lines = np.fromiter(pairs.lines, dtype=np.int64, count=len(pairs))
        return EncodedBlock(PackedSentences.of(pairs.source), PackedSentences.of(pairs.target), lines, counts)


class EncoderPool:
    """Processes that encode blocks.

    Args:
        executor: None: this process encodes.
        processes: their number.
    """

    def __init__(self, executor: ProcessPoolExecutor | None, processes: int) -> None:
        self._executor, self._ahead = executor, _AHEAD * processes

    def blocks(self, rows: Iterable[Rows], encoder: BlockEncoder) -> Iterator[EncodedBlock]:
        """Encode the blocks of a corpus; yields them in order.

        Raises:
            UserError: one of the processes was killed.
        """
        first = 0
        if self._executor is None:
            for each in rows:
                yield encoder.block(each, first)
                first += len(each)
            return
        waiting: deque[Future[EncodedBlock]] = deque()
        try:
            for each in rows:
                # One string is sent sooner than thousands.
                texts = tuple("\n".join(side) for side in zip(*each, strict=True))
                waiting.append(self._executor.submit(_encode, texts, first, encoder.keeps_all))
                first += len(each)
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "one of the processes that encode the text has ended: it was killed, or the machine is out of memory",
                where="--processes",
                hint="Run the command again, with fewer processes if memory is short: finished stages are kept.",
            ) from None


@contextmanager
def encoder_pool(folder: Path, filters: schema.Filters, processes: int | None) -> Iterator[EncoderPool]:
    """Start processes that encode blocks, and end them with the block.

    Args:
        folder: of the saved tokenizers.
        processes: None or 1: this process encodes.
    """
    if processes is None or processes == 1:
        yield EncoderPool(None, 1)
        return
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(processes, context, _load, (folder, filters))
    try:
        yield EncoderPool(executor, processes)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


_encoders: Callable[[bool], BlockEncoder]
"""In a process of the pool: returns the encoder."""


def _load(folder: Path, filters: schema.Filters) -> None:
    """Prepare a process of the pool."""
    global _encoders
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the first process ends the others
    tokenizers = Tokenizers.load(folder)

    def encoder(keeps_all: bool) -> BlockEncoder:
        return BlockEncoder(tokenizers, filters, keeps_all, single=True)

    _encoders = encoder


def _encode(texts: tuple[str, ...], first: int, keeps_all: bool) -> EncodedBlock:
    """Encode the lines of a block, given as one text of each side; in a process of the pool."""
    rows = list(zip(*(text.split("\n") for text in texts), strict=True))
    return _encoders(keeps_all).block(rows, first)
