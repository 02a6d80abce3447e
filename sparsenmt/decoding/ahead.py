"""Encoding ahead: batches are regrouped by the number of positions that filters kept, before they are searched.

A batch's compacted memory is as wide as that of its least pruned sentence. So several batches of sources of similar
length, whose outputs end at about the same time, are encoded first; then sentences that kept similar numbers of
positions are searched together.

Shapes: B sentences, S source positions, S' entries of a memory, D model dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch

from sparsenmt.engine.contract import Engine
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source

AHEAD = 8
"""Batches that are encoded before the first is searched. Their compacted memories take at most 8 x D numbers for each
position, beside 2 x D x layers for the keys and values of the batch that is searched, and as many at most for suspended
searches (`beam.SearchPool`). Searches side by side have as many each."""

ALIKE = 1 / 8
"""The largest difference in length between sources that are encoded together, as a share of the shortest."""


def encode_ahead(
    engine: Engine,
    batches: Iterable[list[int]],
    lengths: Sequence[int],
    batch_tokens: int,
    *,
    read: Callable[[list[int]], Source],
    naming: Callable[[list[int]], AbstractContextManager[None]],
    exits: Sequence[int] | None = None,
    compact: bool,
) -> Iterator[tuple[list[int], Memory]]:
    """Encode batches and regroup them; yields numbers of sentences and their memory.

    Without ``compact``, the batches stay as they are. Otherwise a new batch has no more sentences than the
    largest of the batches that it is made of, and, unless it is a single sentence, no more entries, padding included,
    than ``batch_tokens``.

    Args:
        batches: numbers of sentences, the longest first; `data.batching.length_batches`.
        lengths: by number, those that ``batches`` were made by.
        batch_tokens: the limit that ``batches`` were made by.
        read: makes the input of a batch.
        naming: makes a context that names sentences in the message if the machine runs out of memory.
        exits: the one depth of the encoder to return; None: the deepest that was trained.
        compact: drop what filters close, if this ever makes a memory shorter; False keeps zeros in place, as in
            training: the same outputs, slower.
    """
    held: list[tuple[list[int], Memory]] = []
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        if held and (len(held) == AHEAD or max(lengths[i] for i in held[0][0]) > longest * (1 + ALIKE)):
            yield from regroup(held, batch_tokens)
            held = []
        with naming(batch), torch.inference_mode():
            memory = engine.encode(read(batch), exits=exits, compact=compact).memory
        if compact:
            held.append((batch, memory))
        else:
            yield batch, memory
    yield from regroup(held, batch_tokens)


def regroup(held: Sequence[tuple[list[int], Memory]], batch_tokens: int) -> Iterator[tuple[list[int], Memory]]:
    """Regroup sentences into batches of similar width, the widest first; see `encode_ahead`."""
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
            memory = concatenate_compacted(
                [
                    memory.select(torch.tensor(mine, device=memory.valid.device))
                    for (_, memory), mine in zip(held, rows, strict=True)
                    if mine
                ]
            )
        yield [held[part][0][row] for part, row in chosen], memory


def concatenate_compacted(memories: Sequence[Memory]) -> Memory:
    """Concatenate the sentences of compacted memories, with the width of the widest sentence."""
    return Memory.concatenate([_trim(memory) for memory in memories])


def _trim(memory: Memory) -> Memory:
    """Remove the entries that no sentence has; counts and entries become explicit."""
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
