"""Design rule 3 for every transform: a counted stand-in is what as many zero vectors are, and saves what it promises.

A transform joins by being registered. It stands at the sites that read a memory, before filters of every kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sparsenmt.testing import checks
from sparsenmt.testing.bench import build
from sparsenmt.testing.cases import NORMS, Case, Plug, accepted
from sparsenmt.testing.forced_gates import check_forced_gates
from sparsenmt.testing.rules import READERS
from tests.conformance.cases import plugs
from tests.conformance.support import bench_or_skip, each, has_first_examples, run

FILTERS = [plug for plug in plugs() if plug.method.socket == "memory"]
TRANSFORMS: list[tuple[Plug, ...]] = [(), *((plug,) for plug in accepted(plugs()) if plug.place in READERS)]


def cases() -> Iterator[Case]:
    """Every transform with every filter, at both places; the default transform with them is in `test_alone`."""
    for number, chosen in enumerate((*transform, plug) for transform in TRANSFORMS[1:] for plug in FILTERS):
        yield Case(tuple(chosen), NORMS[number % 2])


CASES = list(cases())


@each(CASES, fast=has_first_examples)  # norms in turns
def test_dense_with_zeros_equals_compacted_with_counts(case: Case) -> None:
    run(bench_or_skip(case), checks.check_compaction, checks.check_keys_read)


@each([Case(chosen, norm) for chosen in TRANSFORMS for norm in NORMS])
def test_gates_that_drop_everything_nothing_and_some(case: Case) -> None:
    run(build(case), check_forced_gates)


def test_every_transform_meets_every_filter_at_both_places() -> None:
    met = Counter(plug.place for case in CASES for plug in case.plugs)
    transforms = len(TRANSFORMS) - 1
    assert met["memory.output"] == met["memory.between"] == transforms * len(FILTERS) // 2
    assert {plug.method.name for case in CASES for plug in case.plugs} >= {plug.method.name for plug in FILTERS}
