"""Rates of every filter, against loops, and with entries that stand for several positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsenmt.analysis.filter_rates import FilterPlace, FilterShares, GateCounter, panels, report
from sparsenmt.analysis.gates import LineBatches
from sparsenmt.decoding.inputs import make_source
from sparsenmt.model.protocol import GatesSeen
from tests.analysis.support import BETWEEN, EVERYWHERE, L0DROP, MASKED, OUTPUT, TinyBundle, gated_bundle, sources

MASKED_BETWEEN = [{"name": "toy_faint", "at": "between", "closed": "mask"}, *OUTPUT]
CASES = [OUTPUT, MASKED, BETWEEN, EVERYWHERE, MASKED_BETWEEN, L0DROP, [*OUTPUT, *OUTPUT]]


def naive_shares(bundle: TinyBundle) -> dict[FilterPlace, FilterShares]:
    """Sentence by sentence and gate by gate; closed is what is masked, or closed by an earlier filter of the place."""
    lines = sources(bundle)
    zeros: dict[FilterPlace, int] = {}
    ones: dict[FilterPlace, int] = {}
    for line in lines:
        seen: list[GatesSeen] = []
        with bundle.model.listen_to_gates(seen.append), torch.inference_mode():
            bundle.model.encode(make_source(bundle, [line]))
        for each in seen:
            key = FilterPlace(each.depth, each.place, each.index)
            for i in range(len(line.ids)):
                gate = float(each.gates.values[0, i]) if bool(each.memory.valid[0, i]) else 0.0
                if each.memory.gated and each.memory.gates is not None:
                    gate *= float(each.memory.gates[0, i])
                zeros[key] = zeros.get(key, 0) + (gate == 0)
                ones[key] = ones.get(key, 0) + (gate == 1)
    total = sum(len(line.ids) for line in lines)
    return {key: FilterShares(total, zeros[key] / total, ones[key] / total) for key in zeros}


@pytest.mark.parametrize("memory", CASES)
def test_shares_are_those_of_loops(memory: list[dict[str, Any]]) -> None:
    bundle, counter = gated_bundle(memory), GateCounter()
    lines = sources(bundle)
    with bundle.model.listen_to_gates(counter):
        list(LineBatches(bundle, lines, 70).encoded())
    found, naive = counter.shares(sum(len(line.ids) for line in lines)), naive_shares(bundle)
    assert list(found) == list(naive)
    for key, shares in found.items():
        assert shares.closed == pytest.approx(naive[key].closed)
        assert shares.opened == pytest.approx(naive[key].opened)
        assert shares.partial == pytest.approx(1 - shares.closed - shares.opened)
    assert any(shares.closed > 0 for shares in found.values())


@pytest.mark.parametrize("memory", CASES)
def test_merged_positions_weigh_by_their_counts(memory: list[dict[str, Any]]) -> None:
    bundle = gated_bundle(memory)
    batch = make_source(bundle, sources(bundle))
    shares = []
    for compact in (False, True):
        counter = GateCounter()
        with bundle.model.listen_to_gates(counter), torch.inference_mode():
            bundle.model.encode(batch, compact=compact)
        shares.append(counter.shares(int(batch.valid.sum())))
    assert shares[0].keys() == shares[1].keys()
    for key, dense in shares[0].items():
        assert shares[1][key].closed == pytest.approx(dense.closed)
        assert shares[1][key].opened == pytest.approx(dense.opened)


def test_the_report_has_a_row_a_filter() -> None:
    found = {
        "m": {
            FilterPlace(1, "between", 0): FilterShares(8, 0.25, 0.5),
            FilterPlace(2, "output", 1): FilterShares(8, 0.5, 0.0),
        },
        "n": {FilterPlace(2, "output", 0): FilterShares(4, 0.75, 0.25)},
    }
    made = report(found)
    assert made.tables[0].rows == [
        ("m", "after layer 1", 1, "between", 0, 8, 0.25, 0.25, 0.5),
        ("m", "output, filter 2", 2, "output", 1, 8, 0.5, 0.5, 0.0),
        ("n", "output", 2, "output", 0, 4, 0.75, 0.0, 0.25),
    ]
    (panel,) = panels(found)
    assert panel.series == {"m": [(1, 0.25), (2, 0.5)], "n": [(2, 0.75)]}
