"""Gates of lines, and rates."""

from __future__ import annotations

import pytest

from sparsenmt.analysis.gates import LineBatches, SparsityRate, gated_lines, overall_rate
from tests.analysis.support import BETWEEN, EVERYWHERE, L0DROP, MASKED, OUTPUT, gated_bundle, naive_gates, sources


@pytest.mark.parametrize("memory", [OUTPUT, MASKED, BETWEEN, EVERYWHERE, L0DROP])
@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
def test_gates_are_those_of_every_sentence_alone(memory: list[dict[str, str]], batch_tokens: int) -> None:
    bundle = gated_bundle(memory)
    lines = sources(bundle)
    told: list[int] = []
    found = gated_lines(LineBatches(bundle, lines, batch_tokens, told.append))
    assert sum(told) == len(lines)
    assert [each.line for each in found] == lines
    positions = dropped = 0
    for each in found:
        naive = naive_gates(bundle, each.line)
        assert each.gates is not None and each.gates.tolist() == pytest.approx(naive, abs=1e-12)
        assert each.dropped.tolist() == [gate == 0 for gate in naive]
        positions, dropped = positions + len(naive), dropped + sum(gate == 0 for gate in naive)
    assert 0 < dropped < positions, "the toy closes nothing, or everything"
    assert overall_rate(found) == SparsityRate(positions, dropped)
    assert overall_rate(found).sparsity == dropped / positions


def test_without_a_filter_there_are_no_gates() -> None:
    bundle = gated_bundle([])
    found = gated_lines(LineBatches(bundle, sources(bundle), 100))
    assert all(each.gates is None and not each.dropped.any() for each in found)
    assert overall_rate(found).sparsity == 0


def test_a_rate_of_nothing_is_not_zero() -> None:
    assert SparsityRate().sparsity is None
    assert SparsityRate(3, 1) + SparsityRate(1, 1) == SparsityRate(4, 2)
