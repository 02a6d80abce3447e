"""Entropy of the last encoder self-attention, against loops."""

from __future__ import annotations

import math

import pytest
import torch

from sparsenmt.analysis.entropy import EntropyResult, line_entropies, measure, panels, report
from sparsenmt.analysis.gates import LineBatches
from sparsenmt.decoding.inputs import SourceLine, make_source
from sparsenmt.model.protocol import AttentionSeen
from tests.analysis.support import EVERYWHERE, L0DROP, OUTPUT, TinyBundle, gated_bundle, naive_gates, sources


def naive_entropy(bundle: TinyBundle, line: SourceLine) -> list[float]:
    seen: list[AttentionSeen] = []
    with bundle.model.listen(seen.append), torch.inference_mode():
        bundle.model.encode(make_source(bundle, [line]))
    last = [each for each in seen if each.site == "encoder_self"][-1]
    heads, length = last.weights.shape[1], len(line.ids)
    result = []
    for i in range(length):
        row = [sum(float(last.weights[0, h, i, j]) for h in range(heads)) / heads for j in range(length)]
        result.append(-sum(p * math.log(p) for p in row if p > 0))
    return result


@pytest.mark.parametrize("memory", [OUTPUT, EVERYWHERE, L0DROP])
def test_entropies_are_those_of_loops(memory: list[dict[str, str]]) -> None:
    bundle, dense = gated_bundle(memory), gated_bundle([], seed=2)
    lines = sources(bundle)
    sums = {(who, gone): 0.0 for who in ("own", "base") for gone in (True, False)}
    counts = {True: 0, False: 0}
    for line in lines:
        rows = zip(naive_gates(bundle, line), naive_entropy(bundle, line), naive_entropy(dense, line), strict=True)
        for gate, own, base in rows:
            sums["own", gate == 0] += own
            sums["base", gate == 0] += base
            counts[gate == 0] += 1
    own = line_entropies(LineBatches(bundle, lines, 80))
    base = line_entropies(LineBatches(dense, sources(dense), 500))
    assert [each.source.line for each in own] == lines
    found = measure("m", own, base)
    assert (found.kept, found.dropped) == (counts[False], counts[True])
    assert found.sparsity == pytest.approx(counts[True] / (counts[True] + counts[False]))
    assert found.kept_entropy == pytest.approx(sums["own", False] / counts[False])
    assert found.dropped_entropy == pytest.approx(sums["own", True] / counts[True])
    assert found.kept_baseline == pytest.approx(sums["base", False] / counts[False])
    assert found.dropped_baseline == pytest.approx(sums["base", True] / counts[True])
    assert measure("m", own, None).kept_baseline is None


def test_where_nothing_is_dropped_nothing_is_measured() -> None:
    bundle = gated_bundle([])
    found = measure("m", line_entropies(LineBatches(bundle, sources(bundle), 500)), None)
    assert found.dropped == 0 and found.dropped_entropy is None and found.kept_entropy is not None
    assert report([found]).tables[0].records()[0]["dropped_entropy"] is None


def test_curves_rise_with_sparsity() -> None:
    found = [EntropyResult("b", 0.5, 1, 1, 2.0, 3.0, 2.5, 3.5), EntropyResult("a", 0.25, 3, 1, 1.0, 2.0, 1.5, None)]
    kept, dropped = panels(found, "dense")
    assert kept.series == {"with gates": [(0.25, 1.0), (0.5, 2.0)], "dense, same positions": [(0.25, 1.5), (0.5, 2.5)]}
    assert dropped.series["dense, same positions"] == [(0.25, None), (0.5, 3.5)]
    assert list(panels(found, None)[0].series) == ["with gates"]
