"""Methods and toys in pairs across sockets, sites and places; and random mixes of many."""

from __future__ import annotations

import pytest

from sparsenmt.testing import checks
from sparsenmt.testing.cases import Case
from tests.conformance.cases import FAST_PAIRS, THOROUGH_PAIRS, mixes, pairs
from tests.conformance.support import bench_or_skip, run
from tests.examples import examples

PAIRS = pairs()
MIXES = mixes()
ALL = (
    checks.check_steps,
    checks.check_compaction,
    checks.check_keys_read,
    checks.check_bands,
    checks.check_fused,
    checks.check_alone,
    checks.check_listening,
)


def marks(number: int) -> tuple[pytest.MarkDecorator, ...]:
    if number < FAST_PAIRS:
        return ()
    return (pytest.mark.thorough,) if number < THOROUGH_PAIRS else (pytest.mark.slow,)


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case), marks=marks(i)) for i, case in enumerate(PAIRS)])
def test_pair(case: Case) -> None:
    run(bench_or_skip(case), *ALL)


@examples("case", MIXES, fast=8, ids=str)
def test_mix(case: Case) -> None:
    bench = bench_or_skip(case)
    run(bench, *ALL)
    checks.check_gradients(bench)
