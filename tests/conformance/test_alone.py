"""Every registered method and toy alone, at every site or place, with all of its examples, pre- and post-norm."""

from __future__ import annotations

import pytest

from tests.conformance import checks
from tests.conformance.cases import Case, alone
from tests.conformance.support import bench_or_skip, run

CASES = alone()
each_case = pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
filters = [case for case in CASES if any(plug.method.socket == "memory" for plug in case.plugs)]


@each_case
def test_step_by_step_equals_at_once(case: Case) -> None:
    run(bench_or_skip(case), checks.check_steps)


@each_case
def test_compacted_equals_dense(case: Case) -> None:
    run(bench_or_skip(case), checks.check_compaction)


@each_case
def test_banded_equals_masked(case: Case) -> None:
    run(bench_or_skip(case), checks.check_bands)


@each_case
def test_fused_equals_general(case: Case) -> None:
    run(bench_or_skip(case), checks.check_fused)


@each_case
def test_alone_equals_in_a_batch(case: Case) -> None:
    run(bench_or_skip(case), checks.check_alone)


@each_case
def test_listening_changes_nothing_and_weights_are_right(case: Case) -> None:
    run(bench_or_skip(case), checks.check_listening)


@each_case
def test_gradients(case: Case) -> None:
    bench = bench_or_skip(case)
    checks.check_gradients(bench)
    checks.check_learning(bench)


@each_case
def test_single_precision(case: Case) -> None:
    run(bench_or_skip(case), checks.check_single_precision)


@each_case
def test_packed_equals_unpacked(case: Case) -> None:
    run(bench_or_skip(case), checks.check_packed)


@pytest.mark.parametrize("case", filters, ids=map(str, filters))
def test_keys_that_are_read(case: Case) -> None:
    run(bench_or_skip(case), checks.check_keys_read)


@pytest.mark.parametrize("case", filters, ids=map(str, filters))
def test_examples_of_filters_drop_something(case: Case) -> None:
    run(bench_or_skip(case), checks.check_filter_decides)
