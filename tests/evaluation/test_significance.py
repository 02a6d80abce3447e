"""Paired tests: their error rate, agreement with all exchanges and with intervals, and sacrebleu's own figures."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
from sacrebleu import significance as sacrebleus
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

import significance
from sparsenmt.errors import UserError
from sparsenmt.evaluation import significance as significance_tests
from sparsenmt.evaluation.metrics import corpus_scores, statistics
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import (
    FEWEST,
    PairedTest,
    compare,
    compare_statistics,
    seed_test,
    welch_interval,
)
from sparsenmt.metric import METRICS as ALL
from sparsenmt.recipe.choices import SignificanceMethod

METRICS = tuple(name for name, metric in ALL.items() if metric.validates and not metric.needs_documents)


def noisy(lines: list[str], share: float, seed: int) -> list[str]:
    """The lines with a share of their words lost."""
    chooser = random.Random(seed)
    return [" ".join(word if chooser.random() > share else "oh" for word in line.split()) for line in lines]


_CHOOSER = random.Random(0)
_WORDS = ("the", "a", "cat", "dog", "sees", "eats", "red", "big", "in", "house", "and")
REFERENCES = [" ".join(_CHOOSER.choice(_WORDS) for _ in range(12)) for _ in range(60)]
GOOD, ALIKE, BAD = noisy(REFERENCES, 0.2, 1), noisy(REFERENCES, 0.2, 2), noisy(REFERENCES, 0.6, 3)
NEAR = noisy(REFERENCES, 0.3, 4)


METHODS = get_args(SignificanceMethod)


@pytest.mark.parametrize("metric", ["bleu", "rouge1"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.thorough
def test_equally_good_systems_are_told_apart_as_often_as_promised(method: SignificanceMethod, metric: str) -> None:
    work = {"metric": metric, "sentences": 300, "pairs": 400, "segments": 100, "resamples": 100}
    rates = significance.error_rates(work, method)
    assert 0.03 <= rates["p"] <= 0.07, "p < 0.05"
    assert 0.03 <= rates["interval"] <= 0.075, "the 95% interval does not hold 0"
    if metric == "bleu" and method == "bootstrap":
        assert rates["sacrebleu"] > 0.085, "its --paired-bs is one-sided in effect"


@pytest.mark.parametrize("method", METHODS)
def test_the_p_value_agrees_with_the_interval(method: SignificanceMethod) -> None:
    scored = significance.outputs("bleu", 200)
    found = []
    for seed, (ours, theirs) in enumerate(significance.equal_pairs(scored, 40, 100)):
        shift = np.zeros(10)
        shift[2:6] = (seed % 8) / 5  # n-grams found by one system only: from no difference to a plain one
        pair = (replace(ours, values=ours.values + shift), theirs)
        (one,) = compare_statistics([pair], PairedTest(method, 300))
        found.append((one.p_value < 0.05, not one.difference.low <= 0 <= one.difference.high))
    assert sum(p == interval for p, interval in found) >= 0.9 * len(found)
    assert 0.2 < sum(p for p, _ in found) / len(found) < 0.9, "pairs of both kinds"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", METRICS)
def test_a_system_does_not_differ_from_itself(name: str, method: SignificanceMethod) -> None:
    (one,) = compare(GOOD, GOOD, [REFERENCES], ScoringSettings([name]), PairedTest(method, 50))
    assert one.p_value == 1
    assert (one.difference.value, one.difference.low, one.difference.high) == (0, 0, 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", METRICS)
def test_a_plain_difference_is_found_and_noise_is_not(name: str, method: SignificanceMethod) -> None:
    test = PairedTest(method, 200)
    (plain,) = compare(BAD, GOOD, [REFERENCES], ScoringSettings([name]), test)
    assert plain.p_value == pytest.approx(1 / 201), "the smallest possible one"
    worse = plain.difference.low > 0 if name == "ter" else plain.difference.high < 0
    assert worse
    (noise,) = compare(ALIKE, GOOD, [REFERENCES], ScoringSettings([name]), test)
    assert noise.p_value > 0.05


@pytest.mark.parametrize("method", METHODS)
def test_both_orders_of_two_systems_have_the_same_p_value(method: SignificanceMethod) -> None:
    settings, test = ScoringSettings(["bleu", "chrf", "ter", "rouge1"]), PairedTest(method, 150)
    one, other = (compare(*pair, [REFERENCES], settings, test) for pair in ((ALIKE, GOOD), (GOOD, ALIKE)))
    for ours, theirs in zip(one, other, strict=True):
        assert ours.p_value == theirs.p_value and 0 < ours.p_value < 1
        assert ours.difference.value == pytest.approx(-theirs.difference.value)


@pytest.mark.parametrize("system", [ALIKE, NEAR])
@pytest.mark.parametrize("name", ["bleu", "ter", "rouge1"])
def test_randomization_agrees_with_all_exchanges(name: str, system: list[str]) -> None:
    """Eight sentences have 256 exchanges: their share with a difference as large as the observed one is the p-value."""
    hypotheses, baseline, references = system[:8], GOOD[:8], [REFERENCES[:8]]
    ours, theirs = (statistics(lines, references, ScoringSettings([name]))[0] for lines in (hypotheses, baseline))
    both = np.stack([ours.values, theirs.values])
    values = [
        ours.score(both[first, range(8)].sum(0)) - ours.score(both[1 - first, range(8)].sum(0))
        for first in map(np.array, product((0, 1), repeat=8))
    ]
    exact = np.mean([abs(value) >= abs(values[0]) - 1e-9 for value in values])
    assert 0.005 < exact < 0.9
    for fewest, error in ((0, 4 * np.sqrt(exact * (1 - exact) / 3000)), (FEWEST, 1e-12)):
        test = PairedTest("randomization", 3000, fewest=fewest)
        (one,) = compare(hypotheses, baseline, references, ScoringSettings([name]), test)
        assert one.difference.value == pytest.approx(values[0])
        assert one.p_value == pytest.approx(exact, abs=error)


@pytest.mark.parametrize(("method", "name"), [("bootstrap", "bs"), ("randomization", "ar")])
@pytest.mark.parametrize("hypotheses", [ALIKE, BAD])
def test_sacrebleus_figures_are_sacrebleus(hypotheses: list[str], method: SignificanceMethod, name: str) -> None:
    both = [("baseline", GOOD), ("system", hypotheses)]
    test = sacrebleus.PairedTest(
        both, {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}, [REFERENCES], test_type=name, n_samples=300
    )
    _, theirs = test()
    settings = ScoringSettings(["bleu", "chrf", "ter"])
    ours = compare(hypotheses, GOOD, [REFERENCES], settings, PairedTest(method, 300))
    for one, (_, result) in zip(ours, [item for item in theirs.items() if item[0] != "System"], strict=True):
        system = result[1]
        assert one.sacrebleu_p == pytest.approx(system.p_value)
        assert one.system.value == pytest.approx(system.score)
        if name == "bs":
            assert one.system.mean == pytest.approx(system.mean, rel=1e-5)
            assert one.system.half_width == pytest.approx(system.ci, rel=1e-4)


def test_many_exchanges_are_drawn_in_blocks_as_sacrebleu_draws_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, test = ScoringSettings(["bleu"]), PairedTest("randomization", 150)
    whole = compare(ALIKE, GOOD, [REFERENCES], settings, test)
    monkeypatch.setattr("sparsenmt.evaluation.significance._BLOCK", 1)
    assert compare(ALIKE, GOOD, [REFERENCES], settings, test) == whole


def test_sacrebleu_has_no_figure_for_metrics_that_it_does_not_test() -> None:
    settings = ScoringSettings(["rouge1", "length", "bleu"])
    found = compare(ALIKE, GOOD, [REFERENCES], settings, PairedTest(resamples=20))
    assert [one.sacrebleu_p is None for one in found] == [True, True, False]


def test_values_are_those_of_the_corpus_and_lie_in_their_intervals() -> None:
    settings = ScoringSettings(METRICS, language="de")
    scores = corpus_scores(ALIKE, [REFERENCES, GOOD], settings)
    found = compare(ALIKE, BAD, [REFERENCES, GOOD], settings, PairedTest(resamples=100))
    for one, score in zip(found, scores, strict=True):
        assert one.name == score.name
        assert one.system.value == pytest.approx(score.value)
        assert one.system.low < one.system.mean < one.system.high
        assert one.difference.value == pytest.approx(one.system.value - one.baseline.value)


def test_a_test_is_named_and_told_apart_by_all_that_its_p_values_depend_on() -> None:
    assert str(PairedTest()) == "paired bootstrap, 1,000 resamples"
    assert str(PairedTest("randomization", 1)) == "paired approximate randomization, 1 resample"
    tests = [PairedTest(), PairedTest("randomization"), PairedTest(resamples=999), PairedTest(seed=1)]
    assert len({test.identity for test in tests}) == 4 and not any(" " in test.identity for test in tests)


@pytest.mark.parametrize(
    ("ours", "theirs", "quantile", "square"),
    [
        ([1.0, 3.0], [2.0, 4.0], 4.302653, 2.0),  # 2 degrees of freedom; quantiles: any table of Student's distribution
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 2.776445, 2 / 3),  # 4
        ([1.0, 3.0], [5.0, 5.0], 12.706205, 1.0),  # 1: a side without variance adds none
        ([0.0, 1.0] * 100, [0.0, 1.0] * 100, 1.965942, 2 * 0.25 / 199),  # 398
    ],
)
def test_the_interval_of_means_over_seeds(
    ours: list[float], theirs: list[float], quantile: float, square: float
) -> None:
    found = welch_interval(ours, theirs)
    assert found is not None
    difference, half = np.mean(ours) - np.mean(theirs), quantile * square**0.5
    assert found == pytest.approx((difference - half, difference + half), abs=1e-5)
    assert welch_interval(theirs, ours) == pytest.approx((-found[1], -found[0]))


@pytest.mark.parametrize(
    ("differences", "half", "p_value"),
    [  # by tables of Student's distribution; p with 1 and 2 degrees of freedom has a closed form
        ([-0.28, -0.33, -0.51], 4.302653 * 0.120968 / 3**0.5, 1 - 5.344755 / (2 + 5.344755**2) ** 0.5),
        ([-0.18, -0.18, -0.29], 4.302653 * 0.063509 / 3**0.5, 0.0275),
        ([1.0, 3.0], 12.706205, 1 - 2 * np.arctan(2.0) / np.pi),
        ([0.5, -0.5], 12.706205 * 0.5, 1.0),
        ([2.0, 2.0, 2.0], 0.0, 0.0),
        ([0.0, 0.0], 0.0, 1.0),
    ],
)
def test_trainings_of_the_same_seed_are_tested_by_their_differences(
    differences: list[float], half: float, p_value: float
) -> None:
    found, mean = seed_test(differences), np.mean(differences)
    assert found is not None and found.seeds == len(differences) and found.difference == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), abs=1e-4)
    assert found.p_value == pytest.approx(p_value, abs=1e-4)
    assert seed_test(differences[:1]) is None


def test_one_seed_has_no_scatter_and_equal_ones_have_none() -> None:
    assert welch_interval([1.0], [2.0, 3.0]) is None and welch_interval([1.0, 2.0], []) is None
    assert welch_interval([1.0, 1.0], [3.0, 3.0]) == (-2, -2)


def test_the_seed_decides() -> None:
    first, again, other = (
        [
            compare(ALIKE, GOOD, [REFERENCES], ScoringSettings(["bleu"]), PairedTest(method, 50, seed))
            for method in METHODS
        ]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert all(one != another for one, another in zip(first, other, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_one_sentence_has_no_p_value(method: SignificanceMethod) -> None:
    """One exchange of one sentence is as probable as none, and all samples are the sentence itself."""
    (one,) = compare(["a b c d"], ["a b c e"], [["a b c d"]], ScoringSettings(["bleu"]), PairedTest(method, 5))
    assert one.system.value == pytest.approx(100) and one.difference.value > 0
    assert one.p_value is None and one.system.interval is None and one.difference.half_width is None
    assert PairedTest().few([one.segments]) == (
        "with fewer than 30 segments (1): one segment has no p-value; no interval"
    )


@pytest.mark.parametrize("segments", [2, 5, 10])
@pytest.mark.thorough
def test_few_segments_are_told_apart_no_more_often_than_promised(segments: int) -> None:
    work = {"metric": "bleu", "sentences": 300, "pairs": 400, "segments": segments, "resamples": 50}
    before, now = (significance.error_rates(work, "bootstrap", fewest) for fewest in (0, FEWEST))
    assert before["p"] > now["p"], "the bootstrap, which draws the same segments again and again"
    assert now["p"] <= 0.07 and now["interval"] == 0
    if segments <= 5:
        assert now["p"] == 0, "no exchange of them is rarer than one in sixteen"


@pytest.mark.parametrize("segments", [2, 7, 13, 14, 29, 30])
def test_few_segments_are_tested_alike_by_either_method(segments: int) -> None:
    lines = [each[:segments] for each in (NEAR, GOOD)]
    found = [
        compare(*lines, [REFERENCES[:segments]], ScoringSettings(["bleu"]), PairedTest(method, 300))[0]
        for method in METHODS
    ]
    few = segments < FEWEST
    assert (found[0].p_value == found[1].p_value) is few and found[0].segments == segments
    assert all((one.difference.interval is None) is few for one in found)
    if segments == 2:
        assert found[0].p_value in (0.5, 1)


@pytest.mark.parametrize("method", METHODS)
def test_random_exchanges_of_few_segments_are_made_once(
    method: SignificanceMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PairedTest] = []
    draw = significance_tests._coins
    monkeypatch.setattr(significance_tests, "_coins", lambda test, rows: made.append(test) or draw(test, rows))
    (one,) = compare(BAD[:20], GOOD[:20], [REFERENCES[:20]], ScoringSettings(["bleu"]), PairedTest(method, 50))
    assert one.p_value == pytest.approx(1 / 51) and len(made) == 1


def test_tests_of_few_segments_are_named() -> None:
    test = PairedTest(resamples=300)
    assert test.describe([200, 30]) == "paired bootstrap, 300 resamples" and not test.few([])
    exchanges = "all exchanges of the two outputs of a segment"
    assert test.describe([7, 200, 7]) == (
        f"paired bootstrap, 300 resamples; with fewer than 30 segments (7): {exchanges}; no interval"
    )
    assert test.describe([7]) == f"with fewer than 30 segments (7): {exchanges}; no interval"
    assert test.few([1, 4, 15]) == (
        f"with fewer than 30 segments (1, 4, 15): one segment has no p-value; {exchanges}, p at least 0.125 with 4; "
        "paired approximate randomization, 300 resamples; no interval"
    )


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="at least one resample"):
        compare(GOOD, BAD, [REFERENCES], ScoringSettings(["bleu"]), PairedTest(resamples=0))
    with pytest.raises(UserError, match="the baseline: the number of its lines, 59, is not that of the hypotheses, 60"):
        compare(GOOD, BAD[1:], [REFERENCES], ScoringSettings(["bleu"]))
