"""Jensen-Shannon divergence between heads, against loops."""

from __future__ import annotations

import math

import pytest
import torch

from sparsenmt.analysis.diversity import DiversityCounter, LayerDivergence, Layers, divergences, panels, report
from sparsenmt.analysis.observe import Attended
from sparsenmt.model.sites import SITES
from tests.analysis.attention_support import KINDS, attention_bundle, listen, places, rows_alone


def entropy(p: list[float], base: int) -> float:
    return -sum(x * math.log(x, base) for x in p if x > 0)


def naive(rows: list[tuple[list[float], list[bool]]]) -> float | None:
    """Of one query, a row a head; None: it is skipped."""
    keys = sum(any(shown[k] for _, shown in rows) for k in range(len(rows[0][1])))
    looking = [[w / sum(weights) for w in weights] for weights, _ in rows if sum(weights) > 0]
    if keys < 2 or len(looking) < 2:
        return None
    mean = [sum(column) / len(looking) for column in zip(*looking, strict=True)]
    return entropy(mean, keys) - sum(entropy(p, keys) for p in looking) / len(looking)


@pytest.mark.parametrize("kind", KINDS)
def test_divergences_are_those_of_loops(kind: str) -> None:
    bundle, counter = attention_bundle(kind), DiversityCounter()
    listen(bundle, counter)
    found = counter.layers()
    assert set(found) == set(places(kind))
    for (site, layer), mean in found.items():
        values = []
        for sentence in zip(*rows_alone(kind, site, layer), strict=True):
            for rows in zip(*sentence, strict=True):
                value = naive(list(rows))
                if value is not None:
                    values.append(value)
        assert mean.queries == len(values)
        if values:
            assert mean.value == pytest.approx(sum(values) / len(values), abs=1e-9) and 0 <= mean.value <= 1
        else:
            assert mean.value is None


def attended(weights: list[list[list[float]]]) -> Attended:
    """heads x queries x keys, all visible."""
    seen = torch.tensor([weights])
    visible = torch.ones(1, 1, *seen.shape[2:], dtype=torch.bool)
    return Attended("encoder_self", 1, seen, visible, torch.ones(1, seen.shape[2], dtype=torch.bool), [0])


def test_heads_that_agree_and_heads_that_do_not() -> None:
    same = [[0.25, 0.25, 0.5]]
    assert divergences(attended([same, same])).tolist() == pytest.approx([0], abs=1e-7)
    apart = divergences(attended([[[1.0, 0.0]], [[0.0, 1.0]]]))
    assert apart.tolist() == pytest.approx([1])  # two heads at two keys: as far apart as can be
    assert divergences(attended([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])).tolist() == pytest.approx([math.log(2, 3)])


def test_one_key_and_heads_that_look_nowhere_are_skipped() -> None:
    assert len(divergences(attended([[[1.0]], [[1.0]]]))) == 0
    nowhere = [[0.0, 0.0]]
    assert len(divergences(attended([[[1.0, 0.0]], nowhere]))) == 0
    three = divergences(attended([[[1.0, 0.0]], [[0.0, 1.0]], nowhere]))
    assert three.tolist() == pytest.approx([1])


def test_mass_that_is_copied_counts_as_a_distribution() -> None:
    assert divergences(attended([[[2.0, 0.0]], [[0.0, 0.5]]])).tolist() == pytest.approx([1])


def test_the_report_and_the_plot() -> None:
    layers: Layers = {
        ("cross", 2): LayerDivergence(0.5, 3),
        ("cross", 1): LayerDivergence(None, 0),
        ("encoder_self", 1): LayerDivergence(0.25, 4),
    }
    found = {"a": layers, "b": layers}
    (table,) = report(found).tables
    first = [(row["site"], row["layer"], row["divergence"]) for row in table.records() if row["model"] == "a"]
    assert first == [("encoder self", "1", 0.25), ("cross", "1", None), ("cross", "2", 0.5)]
    drawn = panels(found)
    assert len(drawn) == 2 and list(drawn[1].series) == ["a", "b"]
    assert drawn[1].series["a"] == [(1.0, None), (2.0, 0.5)]
    assert panels({}) == [] and set(SITES) > {"cross"}
