"""Design rule 3 for every transform: a counted stand-in is what as many zero vectors are, and saves what it promises.

A transform joins by being registered. It stands at the sites that read a memory, before filters of every kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from torch import nn

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from tests.conformance import checks
from tests.conformance.cases import NORMS, Bench, Case, Plug, accepted, build, plugs
from tests.conformance.support import bench_or_skip, run

READERS = ("cross.transform", "encoder_self.transform")
PLACES = ("output", "between")
FILTERS = [plug for plug in plugs() if plug.method.socket == "memory"]
TRANSFORMS: list[tuple[Plug, ...]] = [(), *((plug,) for plug in accepted(plugs()) if plug.place in READERS)]


def cases() -> Iterator[Case]:
    """Every transform with every filter, at both places; the default transform with them is in `test_alone`."""
    for number, chosen in enumerate((*transform, plug) for transform in TRANSFORMS[1:] for plug in FILTERS):
        yield Case(tuple(chosen), NORMS[number % 2])


CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
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
transform_cases = [Case(chosen, norm) for chosen in TRANSFORMS for norm in NORMS]
each_transform = pytest.mark.parametrize("case", transform_cases, ids=map(str, transform_cases))
each_place = pytest.mark.parametrize("place", PLACES)
each_closed = pytest.mark.parametrize("closed", ["zero", "mask"])


def with_gates(case: Case, rows: list[list[float]], closed: Literal["zero", "mask"], place: str) -> Bench:
    bench = build(case)
    if place == "output":
        bench.model.memory.output.append(Forced(rows, closed))
    else:
        bench.model.memory.between.append(nn.ModuleList([Forced(rows, closed)]))
    return bench


@each_closed
@each_place
@each_transform
@torch.no_grad()
def test_everything_dropped_is_finite(case: Case, place: str, closed: Literal["zero", "mask"]) -> None:
    bench = with_gates(case, EVERYTHING, closed, place)
    checks.check_compaction(bench)
    checks.check_steps(bench)
    (memory,) = bench.encode(compact=True).memories.values()
    if bench.model.obstacle(place) is None:
        assert memory.states.shape[1] <= 2, "a stand-in, or nothing"


@each_closed
@each_place
@each_transform
@torch.no_grad()
def test_nothing_dropped_is_the_plain_model(case: Case, place: str, closed: Literal["zero", "mask"]) -> None:
    expected = build(case).outputs()
    bench = with_gates(case, NOTHING, closed, place)
    for compact in (False, True):
        checks.assert_same(bench.outputs(compact=compact), expected, f"open gates, compact={compact}", 1e-12)
        (memory,) = bench.encode(compact=compact).memories.values()
        assert memory.counts is None, "no stand-in"


@each_closed
@each_place
@each_transform
@torch.no_grad()
def test_sentences_that_keep_all_some_and_nothing_together(
    case: Case, place: str, closed: Literal["zero", "mask"]
) -> None:
    bench = with_gates(case, MIXED, closed, place)
    checks.check_compaction(bench)
    checks.check_keys_read(bench)


def test_every_transform_meets_every_filter_at_both_places() -> None:
    met = Counter(plug.place for case in CASES for plug in case.plugs)
    transforms = len(TRANSFORMS) - 1
    assert met["memory.output"] == met["memory.between"] == transforms * len(FILTERS) // 2
    assert {plug.method.name for case in CASES for plug in case.plugs} >= {plug.method.name for plug in FILTERS}
