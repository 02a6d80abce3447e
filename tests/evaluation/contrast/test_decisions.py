"""Decisions, accuracies, intervals and comparisons against published and hand-made values."""

from __future__ import annotations

import math
from itertools import product

import pytest

from sparsenmt.decoding.forced_decoding import TargetScore
from sparsenmt.evaluation.contrast.decisions import Accuracy, Decision, compare_decisions, decide, mcnemar, wilson
from sparsenmt.evaluation.contrast.groups import distance_bin, frequency_bin, group
from sparsenmt.evaluation.contrast.items import Item
from sparsenmt.evaluation.contrast.scoring import ScoredItem


def scored(correct: float, *wrong: float, pieces: int = 2) -> ScoredItem:
    return ScoredItem(TargetScore(correct, pieces), tuple(TargetScore(value, pieces) for value in wrong))


def test_all_wrong_targets_must_be_beaten_and_ties_are_wrong() -> None:
    decisions = [decide(each) for each in (scored(-1, -2, -3), scored(-2, -3, -1), scored(-2, -2, -3))]
    assert [each.name for each in decisions] == ["right", "wrong", "tie"]
    found = Accuracy.of(decisions)
    assert (found.items, found.right, found.ties, found.accuracy) == (3, 1, 1, 1 / 3)


def test_normalized_scores_are_means() -> None:
    """-6 over 6 pieces is less probable than -4 over 2, but better a piece."""
    item = ScoredItem(TargetScore(-6.0, 6), (TargetScore(-4.0, 2),))
    assert decide(item).name == "wrong"
    assert decide(item, normalize=True) == Decision(-1.0, -2.0)


@pytest.mark.parametrize(
    ("right", "items", "low", "high"),
    [  # Newcombe (1998), Two-sided confidence intervals for the single proportion, Table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_against_published_values(right: int, items: int, low: float, high: float) -> None:
    assert wilson(right, items) == pytest.approx((low, high), abs=5e-5)
    assert wilson(items - right, items) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_wilson_solves_its_equation() -> None:
    """Its ends are the proportions from which the observed one is z standard errors away."""
    for right, items in ((1, 3), (50, 100), (970, 1000)):
        for end in wilson(right, items):
            z = abs(right / items - end) / math.sqrt(end * (1 - end) / items)
            assert z == pytest.approx(1.959963984540054)
    with pytest.raises(ValueError):
        wilson(0, 0)


def test_mcnemar_by_hand() -> None:
    """6 against 16: 2 x (1 + 22 + 231 + 1540 + 7315 + 26334 + 74613) of 2^22 outcomes."""
    assert mcnemar(6, 16) == mcnemar(16, 6) == 2 * 110056 / 2**22
    assert mcnemar(0, 0) == mcnemar(5, 5) == mcnemar(5, 6) == 1.0
    assert mcnemar(0, 5) == 2 / 32
    assert 0 < mcnemar(400, 600) < 1e-9
    assert mcnemar(0, 5000) == 0.0  # less than any float


def test_mcnemar_counts_outcomes() -> None:
    for n in range(1, 10):
        for b in range(n + 1):
            extreme = sum(abs(2 * sum(throw) - n) >= abs(2 * b - n) for throw in product((0, 1), repeat=n))
            assert mcnemar(b, n - b) == pytest.approx(extreme / 2**n)


def test_models_are_compared_item_by_item() -> None:
    right, wrong = Decision(-1, -2), Decision(-2, -1)
    found = compare_decisions([right, right, wrong, wrong, right], [right, wrong, right, wrong, wrong])
    assert (found.difference, found.only_other, found.only_this) == (-1 / 5, 2, 1)
    assert found.p_value == mcnemar(2, 1)


def test_distances_are_binned_as_in_lingeval97() -> None:
    names = [distance_bin(distance)[1] for distance in (0, 1, 15, 16, 99)]
    assert names == ["0", "1", "15", ">15", ">15"]


def test_frequencies_are_binned_as_in_lingeval97() -> None:
    """Its evaluation has a bin for 0, 1 and 2, and one up to each of 5, 10, 20, 50 ... 10,000, and the rest."""
    ends = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
    for number in [*range(30), *(end + step for end in ends[6:] for step in (-1, 0, 1))]:
        order, name = frequency_bin(number)
        assert order == sum(number > end for end in ends)
        if order < 3:
            assert name == str(number)
        elif order == len(ends):
            assert name == ">10000"
        else:
            first, last = map(int, name.split("-"))
            assert first <= number <= last == ends[order] and first == ends[order - 1] + 1


def test_groups() -> None:
    items = [
        Item(0, "c", ("w",), "b", "here", distance=2, frequency=3, origin="o"),
        Item(0, "c", ("w",), "a", "here", distance=20, frequency=30),
        Item(0, "c", ("w",), "a", "here", distance=10),
        Item(0, "c", ("w",), "a", "here", word="bank", sense="money"),
        Item(0, "c", ("w",), "a", "here", distance=9),
    ]
    found = {each.name: [(own.keys, own.members) for own in each.groups] for each in group(items)}
    assert found == {
        "overall": [((), (0, 1, 2, 3, 4))],
        "types": [(("a",), (1, 2, 3, 4)), (("b",), (0,))],
        "distances": [(("a", "9"), (4,)), (("a", "10"), (2,)), (("a", ">15"), (1,)), (("b", "2"), (0,))],
        "frequencies": [(("a", "21-50"), (1,)), (("b", "3-5"), (0,))],
        "origins": [(("o",), (0,))],
        "senses": [(("bank", "money"), (3,))],
    }
