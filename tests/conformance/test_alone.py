"""Every registered method and toy alone, at every site or place, with all of its examples, pre- and post-norm."""

from __future__ import annotations

from sparsenmt.testing import checks
from sparsenmt.testing.cases import Case
from tests.conformance.cases import alone
from tests.conformance.support import bench_or_skip, each, run


@each(alone())
def test_all_checks(case: Case) -> None:
    bench = bench_or_skip(case)
    run(
        bench,
        checks.check_steps,
        checks.check_compaction,
        checks.check_bands,
        checks.check_fused,
        checks.check_alone,
        checks.check_listening,
    )
    if any(plug.method.socket == "memory" for plug in case.plugs):
        run(bench, checks.check_keys_read, checks.check_filter_decides)
    checks.check_gradients(bench)
    checks.check_learning(bench)
    run(bench, checks.check_single_precision, checks.check_packed)  # they leave the model in fp32, and packed
