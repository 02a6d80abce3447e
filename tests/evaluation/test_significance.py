"""Paired bootstrap: sacrebleu's own numbers, a system against itself, certain and uncertain differences."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import compare
from sparsenmt.metric import METRICS as ALL

METRICS = tuple(name for name, metric in ALL.items() if metric.validates and not metric.needs_documents)


def noisy(lines: list[str], share: float, seed: int) -> list[str]:
    """The lines with a share of their words lost."""
    chooser = random.Random(seed)
    return [" ".join(word if chooser.random() > share else "oh" for word in line.split()) for line in lines]


_CHOOSER = random.Random(0)
_WORDS = ("the", "a", "cat", "dog", "sees", "eats", "red", "big", "in", "house", "and")
REFERENCES = [" ".join(_CHOOSER.choice(_WORDS) for _ in range(12)) for _ in range(60)]
GOOD, ALIKE, BAD = noisy(REFERENCES, 0.2, 1), noisy(REFERENCES, 0.2, 2), noisy(REFERENCES, 0.6, 3)


@pytest.mark.parametrize("hypotheses", [ALIKE, BAD])
def test_numbers_are_sacrebleus(hypotheses: list[str]) -> None:
    test = PairedTest(
        [("baseline", GOOD), ("system", hypotheses)],
        {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()},
        [REFERENCES],
        test_type="bs",
        n_samples=300,
    )
    _, theirs = test()
    ours = compare(hypotheses, GOOD, [REFERENCES], ScoringSettings(["bleu", "chrf", "ter"]), resamples=300)
    for one, (_, result) in zip(ours, [item for item in theirs.items() if item[0] != "System"], strict=True):
        system = result[1]
        assert one.system.value == pytest.approx(system.score)
        assert one.system.mean == pytest.approx(system.mean, rel=1e-5)
        assert one.system.half_width == pytest.approx(system.ci, rel=1e-4)
        assert one.p_value == pytest.approx(system.p_value)


@pytest.mark.parametrize("name", METRICS)
def test_a_system_does_not_differ_from_itself(name: str) -> None:
    (one,) = compare(GOOD, GOOD, [REFERENCES], ScoringSettings([name]), resamples=50)
    assert one.p_value == 1
    assert (one.difference.value, one.difference.low, one.difference.high) == (0, 0, 0)


@pytest.mark.parametrize("name", METRICS)
def test_a_plain_difference_is_found_and_noise_is_not(name: str) -> None:
    (plain,) = compare(BAD, GOOD, [REFERENCES], ScoringSettings([name]), resamples=200)
    assert plain.p_value == pytest.approx(1 / 201)
    worse = plain.difference.low > 0 if name == "ter" else plain.difference.high < 0
    assert worse
    (noise,) = compare(ALIKE, GOOD, [REFERENCES], ScoringSettings([name]), resamples=200)
    assert noise.p_value > 0.05


def test_values_are_those_of_the_corpus_and_lie_in_their_intervals() -> None:
    scores = corpus_scores(ALIKE, [REFERENCES, GOOD], ScoringSettings(METRICS, language="de"))
    for one, score in zip(
        compare(ALIKE, BAD, [REFERENCES, GOOD], ScoringSettings(METRICS, language="de"), resamples=100),
        scores,
        strict=True,
    ):
        assert one.name == score.name
        assert one.system.value == pytest.approx(score.value)
        assert one.system.low < one.system.mean < one.system.high
        assert one.difference.value == pytest.approx(one.system.value - one.baseline.value)


def test_rouge_equals_a_naive_bootstrap() -> None:
    (one,) = compare(ALIKE, GOOD, [REFERENCES], ScoringSettings(["rouge1"]), resamples=100, seed=7)
    single = [
        [
            corpus_scores([h], [[r]], ScoringSettings(["rouge1"]))[0].value
            for h, r in zip(system, REFERENCES, strict=True)
        ]
        for system in (ALIKE, GOOD)
    ]
    chooser = np.random.default_rng(7)
    means: list[list[float]] = [[], []]
    for _ in range(100):
        chosen = chooser.choice(60, size=60, replace=True)
        for system in (0, 1):
            means[system].append(sum(single[system][i] for i in chosen) / 60)
    assert one.system.mean == pytest.approx(sum(means[0]) / 100)
    assert (one.system.low, one.system.high) == pytest.approx((sorted(means[0])[2], sorted(means[0])[97]))
    distances = [abs(a - b) for a, b in zip(*means, strict=True)]
    extreme = sum(d - sum(distances) / 100 >= abs(one.difference.value) for d in distances)
    assert one.p_value == pytest.approx((extreme + 1) / 101)


def test_the_seed_decides() -> None:
    first, again, other = (
        compare(ALIKE, GOOD, [REFERENCES], ScoringSettings(["bleu"]), resamples=50, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_one_sentence_is_enough() -> None:
    (one,) = compare(["a b c d"], ["a b c e"], [["a b c d"]], ScoringSettings(["bleu"]), resamples=5)
    assert one.system.low == one.system.high == pytest.approx(100)


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="at least one resample"):
        compare(GOOD, BAD, [REFERENCES], ScoringSettings(["bleu"]), resamples=0)
    with pytest.raises(UserError, match="the baseline: the number of its lines, 59, is not that of the hypotheses, 60"):
        compare(GOOD, BAD[1:], [REFERENCES], ScoringSettings(["bleu"]))
