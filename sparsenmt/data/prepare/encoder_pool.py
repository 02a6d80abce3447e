"""Sentence pairs as token ids, encoded and filtered block by block, in this process or in several.

Blocks come back in order, so the prepared data do not depend on the number of processes. The processes are new ones
(spawn), since this one may have threads, and read the tokenizers from files.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import PackedSentences
from sparsenmt.data.prepare.filters import EncodedPairs, FilterCounts, apply_filters, truncate_sources
from sparsenmt.data.prepare.text_filters import TextFilters
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

Texts = tuple[list[str], ...]
"""The sources and the targets of lines."""
_AHEAD = 2  # blocks of each process that are encoded or wait for it


class NumberedPairs(NamedTuple):
    """Pairs of a corpus with the numbers of their lines, from 0."""

    lines: Sequence[int]
    texts: Texts


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
        tag: token before every source that is not empty.
        by_text: filters by the text, which has no tag.
    """

    tokenizers: Tokenizers
    filters: schema.Filters
    keeps_all: bool
    single: bool = False
    tag: str | None = None
    by_text: TextFilters | None = None

    def pairs(self, block: NumberedPairs, counts: FilterCounts) -> EncodedPairs:
        """Return the pairs that are kept; updates ``counts``."""
        sides, (sources, targets) = [], block.texts
        if self.tag is not None:
            sources = [f"{self.tag} {line}" if line.strip() else line for line in sources]
        for lines, tokenizer in zip((sources, targets), (self.tokenizers.source, self.tokenizers.target), strict=True):
            # A call for each line, unlike one for all, never starts threads.
            sides.append([tokenizer.encode(line) for line in lines] if self.single else tokenizer.encode_batch(lines))
        found = EncodedPairs(sides[0], sides[1], block.lines)
        if self.keeps_all:
            return truncate_sources(found, self.filters.max_source_length, counts)
        return apply_filters(found, self.filters, counts, block.texts, self.by_text)

    def block(self, block: NumberedPairs) -> EncodedBlock:
        """Return the block, packed."""
        counts = FilterCounts()
        pairs = self.pairs(block, counts)
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

    def blocks(self, texts: Iterable[NumberedPairs], encoder: BlockEncoder) -> Iterator[EncodedBlock]:
        """Encode the blocks of a corpus; yields them in order.

        Raises:
            UserError: one of the processes was killed.
        """
        if self._executor is None:
            yield from map(encoder.block, texts)
            return
        waiting: deque[Future[EncodedBlock]] = deque()
        try:
            for each in texts:
                joined = tuple(map("\n".join, each.texts))  # one string is sent sooner than thousands
                how = encoder.keeps_all, encoder.tag
                waiting.append(self._executor.submit(_encode, self._folder, joined, each.lines, *how))
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
def encoder_pool(
    folder: Path, filters: schema.Filters, processes: int | None, by_text: TextFilters | None = None
) -> Iterator[EncoderPool]:
    """Start processes that encode blocks, and end them with the block.

    They start at once, so that they are ready when there are tokenizers.

    Args:
        folder: where the tokenizers are saved before the first block.
        processes: None or 1: this process encodes.
        by_text: the filters by text.
    """
    if processes is None or processes == 1:
        yield EncoderPool(None, 1, folder)
        return
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(processes, context, _begin, (filters, by_text))
    try:
        with suppress(BrokenProcessPool):  # `EncoderPool.blocks` reports it
            for _ in range(processes):
                executor.submit(int)  # does nothing: a process starts for every task while none is idle
        yield EncoderPool(executor, processes, folder)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


_filters: schema.Filters
"""In a process of the pool: the filters of the corpora."""
_by_text: TextFilters | None
"""In a process of the pool: those by text."""


def _begin(filters: schema.Filters, by_text: TextFilters | None) -> None:
    """Prepare a process of the pool."""
    global _filters, _by_text
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the first process ends the others
    _filters, _by_text = filters, by_text


@functools.cache
def _tokenizers(folder: Path) -> Tokenizers:
    """The tokenizers, read once in a process of the pool."""
    return Tokenizers.load(folder)


def _encode(
    folder: Path, joined: tuple[str, ...], lines: Sequence[int], keeps_all: bool, tag: str | None
) -> EncodedBlock:
    """Encode the lines of a block, given as one text of each side; in a process of the pool."""
    encoder = BlockEncoder(_tokenizers(folder), _filters, keeps_all, single=True, tag=tag, by_text=_by_text)
    return encoder.block(NumberedPairs(lines, tuple(text.split("\n") for text in joined)))
