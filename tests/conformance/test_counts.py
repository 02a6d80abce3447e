"""Design rule 3 for every transform: a counted stand-in is what as many zero vectors are, and saves what it promises.

A transform joins by being registered. It stands at the sites that read a memory, before filters of every kind.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from tests.conformance import checks
from tests.conformance.cases import NORMS, Bench, Case, Plug, accepted, build, plugs
from tests.conformance.support import bench_or_skip, each, run

READERS = ("cross.transform", "encoder_self.transform")
PLACES = ("output", "between")
FILTERS = [plug for plug in plugs() if plug.method.socket == "memory"]
TRANSFORMS: list[tuple[Plug, ...]] = [(), *((plug,) for plug in accepted(plugs()) if plug.place in READERS)]


def cases() -> Iterator[Case]:
    """Every transform with every filter, at both places; the default transform with them is in `test_alone`."""
    for number, chosen in enumerate((*transform, plug) for transform in TRANSFORMS[1:] for plug in FILTERS):
        yield Case(tuple(chosen), NORMS[number % 2])


CASES = list(cases())


@each(CASES, fast=lambda case: case.has_first_examples)  # norms in turns
def test_dense_with_zeros_equals_compacted_with_counts(case: Case) -> None:
    run(bench_or_skip(case), checks.check_compaction, checks.check_keys_read)


class Forced(MemoryFilter):
    """Gates by position; what stands in for others is closed again, as `cumulative` filters do."""

    def __init__(self, rows: list[list[float]], closed: Literal["zero", "mask"]) -> None:
        super().__init__()
        self.rows, self.closed = torch.tensor(rows, dtype=torch.float64), closed

    def forward(self, memory: Memory) -> Gates:
        at = memory.positions.clamp(0, self.rows.shape[1] - 1)
        return Gates(self.rows.gather(1, at) * (memory.positions >= 0), self.closed)


EVERYTHING = [[0.0]] * 3
NOTHING = [[1.0]] * 3
MIXED = [[0.0, 1, 0.5, 0, 1, 0], [0.0] * 6, [1.0] * 6]  # some, all and none of a sentence
CLOSED: tuple[Literal["zero", "mask"], ...] = ("zero", "mask")


@contextmanager
def gates(bench: Bench, place: str, gates: Forced) -> Iterator[None]:
    """Add a filter with these gates to the model."""
    filters = getattr(bench.model.memory, place)
    filters.append(gates if place == "output" else nn.ModuleList([gates]))
    yield
    del filters[-1]


@each([Case(chosen, norm) for chosen in TRANSFORMS for norm in NORMS])
@torch.no_grad()
def test_gates_that_drop_everything_nothing_and_some(case: Case) -> None:
    bench = build(case)
    plain = bench.outputs()
    for place, closed in itertools.product(PLACES, CLOSED):
        with gates(bench, place, Forced(EVERYTHING, closed)):
            check_everything_dropped(bench, place)
        with gates(bench, place, Forced(NOTHING, closed)):
            check_nothing_dropped(bench, plain)
        with gates(bench, place, Forced(MIXED, closed)):
            run(bench, checks.check_compaction, checks.check_keys_read)


def check_everything_dropped(bench: Bench, place: str) -> None:
    """What is left is finite, and as narrow as it can be."""
    run(bench, checks.check_compaction, checks.check_steps)
    (memory,) = bench.encode(compact=True).memories.values()
    if bench.model.obstacle(place) is None:
        assert memory.states.shape[1] <= 2, "a stand-in, or nothing"


def check_nothing_dropped(bench: Bench, plain: dict[tuple[int, int], Tensor]) -> None:
    """Open gates change nothing."""
    for compact in (False, True):
        checks.assert_same(bench.outputs(compact=compact), plain, f"open gates, compact={compact}", 1e-12)
        (memory,) = bench.encode(compact=compact).memories.values()
        assert memory.counts is None, "no stand-in"


def test_every_transform_meets_every_filter_at_both_places() -> None:
    met = Counter(plug.place for case in CASES for plug in case.plugs)
    transforms = len(TRANSFORMS) - 1
    assert met["memory.output"] == met["memory.between"] == transforms * len(FILTERS) // 2
    assert {plug.method.name for case in CASES for plug in case.plugs} >= {plug.method.name for plug in FILTERS}
