"""Design rule 3 for every transform: a stand-in with a count is what as many zero vectors are, and saves work.

Gates are forced at the places of memory filters, in front of the sites that read a memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.testing import checks
from sparsenmt.testing.bench import Bench

Place = Literal["output", "between"]
Closed = Literal["zero", "mask"]
FORCED_PLACES: tuple[Place, ...] = ("output", "between")
CLOSED: tuple[Closed, ...] = ("zero", "mask")
EVERYTHING = ((0.0,),)
NOTHING = ((1.0,),)
SOME = ((0.0, 1, 0.5, 0, 1, 0), (0.0,) * 6, (1.0,) * 6)  # some, all and none of a sentence


class ForcedGates(MemoryFilter):
    """Gates by position; what stands in for others is closed again, as `cumulative` filters do.

    Args:
        rows: the gates of sentences in turn; the last one is that of all later positions.
    """

    def __init__(self, rows: tuple[tuple[float, ...], ...], closed: Closed) -> None:
        super().__init__()
        self.rows, self.closed = torch.tensor(rows, dtype=torch.float64), closed

    def forward(self, memory: Memory) -> Gates:
        at = memory.positions.clamp(0, self.rows.shape[1] - 1)
        rows = self.rows[torch.arange(len(at)) % len(self.rows)]
        return Gates(rows.gather(1, at) * (memory.positions >= 0), self.closed)


@contextmanager
def forced(bench: Bench, place: Place, gates: ForcedGates) -> Iterator[None]:
    """Add a filter with these gates to the model, after the first layer of the encoder or after the last."""
    filters = getattr(bench.model.memory, place)
    filters.append(gates if place == "output" else nn.ModuleList([gates]))
    try:
        yield
    finally:
        del filters[-1]


def check_forced_gates(bench: Bench) -> None:
    """Gates that drop everything, nothing and some: compacted = dense, and as narrow as it can be."""
    plain = bench.outputs()
    for place, closed in itertools.product(FORCED_PLACES, CLOSED):
        with forced(bench, place, ForcedGates(EVERYTHING, closed)):
            checks.check_compaction(bench)
            checks.check_steps(bench)
            for memory in bench.encode(compact=True).memories.values():
                narrow = bench.model.obstacle(place) is not None or memory.states.shape[1] <= 2
                checks.require(narrow, "where all is dropped, more than a stand-in is left")
        with forced(bench, place, ForcedGates(NOTHING, closed)):
            for compact in (False, True):
                checks.assert_same(bench.outputs(compact=compact), plain, f"open gates, compact={compact}", 1e-12)
                counted = any(each.counts is not None for each in bench.encode(compact=compact).memories.values())
                checks.require(not counted, "open gates leave a stand-in")
        with forced(bench, place, ForcedGates(SOME, closed)):
            checks.check_compaction(bench)
            checks.check_keys_read(bench)
