"""Sentences on which sparse heads are unusually dense, against loops."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from sparsenmt.analysis.dense_sentences import (
    FLOOR,
    LEAST,
    DenseSentencesResult,
    DensityRecorder,
    find,
    panels,
    report,
    usual,
)
from sparsenmt.analysis.density import DensityCounter
from sparsenmt.analysis.labels import Head
from sparsenmt.decoding.inputs import SourceLine
from tests.analysis.attention_support import KINDS, attention_bundle, listen, texts

HEAD: Head = ("encoder_self", 2, 1)


def invented(count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 40, count)
    densities = (2 / lengths + 0.05 * rng.random(count)).astype(np.float32)
    densities[5] = np.nan
    return densities, lengths


def naive(densities: list[float], lengths: list[int], i: int) -> tuple[float, float] | None:
    """Mean of the others, and excess; None: nothing is said."""
    if math.isnan(densities[i]):
        return None
    reach = max(1, round(lengths[i] * 0.1))
    near = [
        d
        for j, (d, n) in enumerate(zip(densities, lengths, strict=True))
        if j != i and abs(n - lengths[i]) <= reach and not math.isnan(d)
    ]
    if len(near) < LEAST:
        return None
    mean = statistics.fmean(near)
    return mean, (densities[i] - mean) / max(statistics.pstdev(near), FLOOR)


@pytest.mark.parametrize("count", [0, 1, 30, 300])
def test_what_is_usual_is_that_of_loops(count: int) -> None:
    densities, lengths = invented(max(count, 6))
    densities, lengths = densities[:count], lengths[:count]
    means, excesses = usual(densities, lengths)
    said = 0
    for i in range(count):
        expected = naive(densities.tolist(), lengths.tolist(), i)
        if expected is None:
            assert np.isnan(means[i]) and np.isnan(excesses[i])
        else:
            assert (means[i], excesses[i]) == pytest.approx(expected, rel=1e-6)
            said += 1
    assert (said > 0) == (count == 300)


def test_the_densest_for_its_length_is_found() -> None:
    densities, lengths = invented(300)
    densities[7] = 0.9
    dense: Head = ("encoder_self", 1, 1)
    found = find("m", {HEAD: densities, dense: np.full(300, 0.8, np.float32)}, lengths, top=3, alphas={HEAD: 1.9})
    assert list(found.sparse) == [HEAD] and len(found.sentences) == 3
    first = found.sentences[0]
    assert (first.place, first.head, first.length) == (7, HEAD, lengths[7]) and first.density == pytest.approx(0.9)
    assert [s.excess for s in found.sentences] == sorted([s.excess for s in found.sentences], reverse=True)
    table = report([found], [[SourceLine(100 + i, f"text {i}", []) for i in range(300)]]).tables[0]
    row = table.records()[0]
    assert (row["sentence"], row["text"], row["head"], row["alpha"]) == (108, "text 7", "2.1", 1.9)
    ((drawn,),) = panels(found_list := [found])
    assert len(drawn.series["sentences"]) == 299 and len(drawn.series["unusually dense"]) == 3
    assert found_list[0].model in drawn.title


def test_equal_densities_are_not_unusual() -> None:
    found = find("m", {HEAD: np.full(50, 0.25, np.float32)}, np.full(50, 8))
    assert found.sentences == [] and found.sparse == {HEAD: 0.25}
    made = report([found], [[]])
    assert "no sentence is unusual" in made.notes[-1]
    assert panels([found])[0][0].series == {}


def test_without_sparse_heads_nothing_is_listed() -> None:
    found = find("m", {HEAD: np.ones(50, np.float32), ("cross", 1, 1): np.full(50, np.nan, np.float32)}, np.full(50, 8))
    assert found.sparse == {} and report([found], [[]]).notes[-1] == "m: no head is sparse"


def test_a_few_diagrams_stand_in_a_line() -> None:
    rng = np.random.default_rng(1)
    heads: dict[Head, np.ndarray] = {("cross", 1, i): (0.4 * rng.random(60)).astype(np.float32) for i in range(1, 5)}
    found = find("m", heads, np.full(60, 8), top=60)
    assert [len(line) for line in panels([found])] == [3, 3] and panels([found])[1][1].series == {}
    assert isinstance(found, DenseSentencesResult)


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_densities_are_those_that_are_counted(kind: str) -> None:
    bundle = attention_bundle(kind)
    recorder, counter = DensityRecorder(len(texts(bundle))), DensityCounter()
    listen(bundle, recorder, counter)
    heads, counted = recorder.heads(), counter.result("m").heads
    assert set(heads) == set(counted)
    for head, values in heads.items():
        assert len(values) == len(texts(bundle))
        assert float(np.nanmean(values.astype(np.float64))) == pytest.approx(counted[head].density, abs=1e-6)
