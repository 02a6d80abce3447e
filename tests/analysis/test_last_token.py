"""Cross-attention mass on the end of the source, against loops."""

from __future__ import annotations

import pytest

from sparsenmt.analysis.gates import LineBatches, gated_lines
from sparsenmt.analysis.last_token import EVEN, LastTokenCounter, panels, report
from sparsenmt.analysis.observe import observe
from tests.analysis.attention_support import KINDS, OUTPUTS, attention_bundle, listen, rows_alone, texts


@pytest.mark.parametrize("kind", KINDS)
def test_masses_are_those_of_loops(kind: str) -> None:
    bundle = attention_bundle(kind)
    lines = gated_lines(LineBatches(bundle, texts(bundle), 90))
    counter = LastTokenCounter(lines)
    listen(bundle, counter, sites=["cross"])
    found = counter.result("m")
    assert list(found.layers) == [1, 2]
    for layer, mass in found.layers.items():
        sums, count = [0.0] * 4, 0
        for head, sentences in enumerate(rows_alone(kind, "cross", layer)):
            alone = 0.0
            for line, rows in zip(lines, sentences, strict=True):
                last = len(line.line.ids) - 1
                for weights, shown in rows:
                    at = [0.0 if line.dropped[place] else weights[place] for place in (last, last - 1)]
                    even = shown[last] / sum(shown) if any(shown) else 0
                    sums = [a + b for a, b in zip(sums, [*at, even, at[0] > 0 and at[0] == max(weights)], strict=True)]
                    alone, count = alone + at[0], count + 1
            assert mass.heads[head] == pytest.approx(alone / sum(len(each.ids) for each in OUTPUTS))
        assert mass.positions == sum(len(each.ids) for each in OUTPUTS) == count / 4
        assert (mass.last, mass.before, mass.even, mass.largest) == pytest.approx([each / count for each in sums])


def test_a_closed_end_gets_nothing() -> None:
    bundle = attention_bundle("l0drop")
    lines = gated_lines(LineBatches(bundle, texts(bundle), 90))
    closed = [each for each in lines if each.dropped[-1]]
    assert closed, "the toy closes no </s>"
    counter = LastTokenCounter(closed)
    outputs = OUTPUTS[: len(closed)]
    observe(LineBatches(bundle, [each.line for each in closed], 90), outputs, [counter], sites=["cross"])
    found = counter.result("m")
    assert all(mass.last == 0 and mass.largest == 0 for mass in found.layers.values())
    assert found.closed == 1 and "</s> is closed in 100.0% of the sentences" in report([found]).notes[-1]


def test_the_report_and_the_plot() -> None:
    bundle = attention_bundle("dense")
    counter = LastTokenCounter(gated_lines(LineBatches(bundle, texts(bundle), 90)))
    listen(bundle, counter)  # other sites are not listened to
    found = counter.result("m")
    layers, heads = report([found]).tables
    assert [row["layer"] for row in layers.records()] == ["1", "2"] and len(heads.rows) == 8
    (panel,) = panels([found])
    assert panel.series["m"] == [(float(n), mass.last) for n, mass in found.layers.items()]
    assert list(panel.series) == ["m", EVEN]
