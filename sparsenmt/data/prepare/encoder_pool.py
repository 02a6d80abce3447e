"""Sentence pairs as token ids, encoded and filtered block by block, in this process or in several.

Blocks come back in order, so the prepared data do not depend on the number of processes. The processes are new ones
(spawn), since this one may have threads, and read the tokenizers from files.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import PackedSentences
from sparsenmt.data.prepare.filters import EncodedPairs, FilterCounts, apply_filters, truncate_sources
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

Texts = tuple[list[str], ...]
"""The sources and the targets of successive lines."""
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

    def pairs(self, texts: Texts, first: int, counts: FilterCounts) -> EncodedPairs:
        """Return the pairs that are kept, of lines from number ``first`` on; updates ``counts``."""
        sides = []
        for lines, tokenizer in zip(texts, (self.tokenizers.source, self.tokenizers.target), strict=True):
            # A call for each line, unlike one for all, never starts threads.
            sides.append([tokenizer.encode(line) for line in lines] if self.single else tokenizer.encode_batch(lines))
        found = EncodedPairs(sides[0], sides[1], range(first, first + len(texts[0])))
        if self.keeps_all:
            return truncate_sources(found, self.filters.max_source_length, counts)
        return apply_filters(found, self.filters, counts)

    def block(self, texts: Texts, first: int) -> EncodedBlock:
        """Return the block, packed."""
        counts = FilterCounts()
        pairs = self.pairs(texts, first, counts)
        lines = np.fromiter(pairs.lines, dtype=np.int64, count=len(pairs))
        return EncodedBlock(PackedSentences.of(pairs.source), PackedSentences.of(pairs.target), lines, counts)


class EncoderPool:
    """Processes that encode blocks.

    Args:
        executor: None: this process encodes.
        processes: their number.
        folder: where the tokenizers are saved before the first block.
    """

    def __init__(self, executor: ProcessPoolExecutor | None, processes: int, folder: Path) -> None:
        self._executor, self._ahead, self._folder = executor, _AHEAD * processes, folder

    def blocks(self, texts: Iterable[Texts], encoder: BlockEncoder) -> Iterator[EncodedBlock]:
        """Encode the blocks of a corpus; yields them in order.

        Raises:
            UserError: one of the processes was killed.
        """
        first = 0
        if self._executor is None:
            for each in texts:
                yield encoder.block(each, first)
                first += len(each[0])
            return
        waiting: deque[Future[EncodedBlock]] = deque()
        try:
            for each in texts:
                joined = tuple(map("\n".join, each))  # one string is sent sooner than thousands
                waiting.append(self._executor.submit(_encode, self._folder, joined, first, encoder.keeps_all))
                first += len(each[0])
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "one of the processes that encode the text has ended: it was killed, or the machine is out of memory",
                where="--processes",
                hint="Use fewer processes if memory is short. Finished stages are kept.",
                resumable=True,
            ) from None


@contextmanager
def encoder_pool(folder: Path, filters: schema.Filters, processes: int | None) -> Iterator[EncoderPool]:
    """Start processes that encode blocks, and end them with the block.

    They start at once, so that they are ready when there are tokenizers.

    Args:
        folder: where the tokenizers are saved before the first block.
        processes: None or 1: this process encodes.
    """
    if processes is None or processes == 1:
        yield EncoderPool(None, 1, folder)
        return
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(processes, context, _begin, (filters,))
    try:
        with suppress(BrokenProcessPool):  # `EncoderPool.blocks` reports it
            for _ in range(processes):
                executor.submit(int)  # does nothing: a process starts for every task while none is idle
        yield EncoderPool(executor, processes, folder)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


_filters: schema.Filters
"""In a process of the pool: the filters of the corpora."""


def _begin(filters: schema.Filters) -> None:
    """Prepare a process of the pool."""
    global _filters
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the first process ends the others
    _filters = filters


@functools.cache
def _tokenizers(folder: Path) -> Tokenizers:
    """The tokenizers, read once in a process of the pool."""
    return Tokenizers.load(folder)


def _encode(folder: Path, joined: tuple[str, ...], first: int, keeps_all: bool) -> EncodedBlock:
    """Encode the lines of a block, given as one text of each side; in a process of the pool."""
    encoder = BlockEncoder(_tokenizers(folder), _filters, keeps_all, single=True)
    return encoder.block(tuple(text.split("\n") for text in joined), first)
