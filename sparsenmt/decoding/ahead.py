"""Batches that are encoded ahead and put together anew by what their sentences kept.

A batch's compacted memory is as wide as that of its least pruned sentence. So several batches of sources that are about
equally long, and whose outputs so end at about the same time, are encoded first; then sentences that kept about equally
many positions are searched together.

Shapes: B sentences, S source positions, S' entries of a memory, D model dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source, TranslationModel

AHEAD = 8
"""Batches that are encoded before the first is searched. Their memories are held, compacted: 8 x D numbers a position
at most, beside 2 x D x layers for the keys and values of the one batch that is searched, and as many at most for the
last sentences of others (`pool.Pool`)."""

ALIKE = 1 / 8
"""Sources of batches that are encoded together differ in length by this share of the shortest, at most."""


def encode_ahead(
    model: TranslationModel,
    batches: Sequence[list[int]],
    lengths: Sequence[int],
    batch_tokens: int,
    *,
    read: Callable[[list[int]], Source],
    naming: Callable[[list[int]], AbstractContextManager[None]],
    exits: Sequence[int] | None = None,
    compact: bool = True,
) -> Iterator[tuple[list[int], Memory]]:
    """Encode batches, and give what to search together: numbers of sentences, and their memory.

    A model that never compacts gets its batches as they are, one at a time. Otherwise a batch that comes out has no
    more sentences than the largest of those that it is made of, and no more entries, padding included, than
    ``batch_tokens``, but for a sentence alone.

    Args:
        batches: numbers of sentences, the longest first; `data.batching.length_batches`.
        lengths: by number, what ``batches`` were made by.
        batch_tokens: the limit that they were made by.
        read: makes the input of a batch.
        naming: a context that says what was done where the memory of the machine ends.
        exits: the one depth of the encoder that is wanted; None: the deepest that was trained.
        compact: False leaves zeros where they are, as in training: the same outputs, later.
    """
    regrouping = compact and model.compacts
    held: list[tuple[list[int], Memory]] = []
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        if held and (len(held) == AHEAD or max(lengths[i] for i in held[0][0]) > longest * (1 + ALIKE)):
            yield from regroup(held, batch_tokens)
            held = []
        with naming(batch), torch.inference_mode():
            (memory,) = model.encode(read(batch), exits=exits, compact=compact).memories.values()
        if regrouping:
            held.append((batch, memory))
        else:
            yield batch, memory
    yield from regroup(held, batch_tokens)


def regroup(held: Sequence[tuple[list[int], Memory]], batch_tokens: int) -> Iterator[tuple[list[int], Memory]]:
    """The same sentences in batches of about equal width, the widest first; see `encode_ahead`."""
    if not held:
        return
    widths = [memory.valid.sum(1).tolist() for _, memory in held]
    order = sorted(
        ((part, row) for part, (batch, _) in enumerate(held) for row in range(len(batch))),
        key=lambda at: (-widths[at[0]][at[1]], at),
    )
    most = max(len(batch) for batch, _ in held)
    while order:
        widest = max(widths[order[0][0]][order[0][1]], 1)
        size = min(most, max(batch_tokens // widest, 1))
        chosen, order = sorted(order[:size]), order[size:]
        rows = [[row for part, row in chosen if part == number] for number in range(len(held))]
        with torch.inference_mode():
            memory = join([held[part][1].select(_index(mine, held[part][1])) for part, mine in enumerate(rows) if mine])
        yield [held[part][0][row] for part, row in chosen], memory


def _index(rows: list[int], memory: Memory) -> Tensor:
    return torch.tensor(rows, device=memory.valid.device)


def join(memories: Sequence[Memory]) -> Memory:
    """The sentences of several compacted memories in one, as wide as the widest of them needs."""
    return Memory.concatenate([_trim(memory) for memory in memories])


def _trim(memory: Memory) -> Memory:
    """Without the entries that no sentence has; counts and entries, where they were not needed, are written out."""
    used = memory.valid.any(0)
    used[0] = used[0] | ~used.any()
    columns = used.nonzero().squeeze(1)
    entries = memory.written_entries()
    moved = (used.cumsum(0) - 1)[entries.clamp_min(0)].masked_fill(entries < 0, -1)
    return replace(
        memory,
        states=memory.states[:, columns],
        valid=memory.valid[:, columns],
        positions=memory.positions[:, columns],
        counts=memory.written_counts()[:, columns],
        entries=moved,
    )
