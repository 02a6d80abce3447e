"""Decisions on items, accuracy with its confidence interval, and the comparison of two models.

An item is right if the correct target's score is higher than that of every contrastive one; a tie is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsenmt.decoding.forced_decoding import TargetScore
from sparsenmt.evaluation.contrast.scoring import ScoredItem

_Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


@dataclass(frozen=True)
class Decision:
    """A model's decision on an item.

    Args:
        correct: score of the correct target.
        contrastive: best score of a contrastive target.
    """

    correct: float
    contrastive: float

    @property
    def right(self) -> bool:
        return self.correct > self.contrastive

    @property
    def tie(self) -> bool:
        return self.correct == self.contrastive

    @property
    def name(self) -> str:
        return "right" if self.right else "tie" if self.tie else "wrong"


def decide(scored: ScoredItem, *, normalize: bool = False) -> Decision:
    """Decide by log-probabilities or, normalized, by their means over the tokens, `</s>` included."""

    def score(choice: TargetScore) -> float:
        return choice.log_probability / choice.length if normalize else choice.log_probability

    return Decision(score(scored.correct), max(map(score, scored.contrastive)))


@dataclass(frozen=True)
class Accuracy:
    """The share of right items, with its 95% interval."""

    items: int
    right: int
    ties: int

    @classmethod
    def of(cls, decisions: Sequence[Decision]) -> Accuracy:
        right, ties = (sum(getattr(each, name) for each in decisions) for name in ("right", "tie"))
        return cls(len(decisions), right, ties)

    @property
    def accuracy(self) -> float:
        return self.right / self.items

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval at 95% confidence."""
        return wilson(self.right, self.items)


def wilson(right: int, items: int, z: float = _Z95) -> tuple[float, float]:
    """The score interval of a proportion (Wilson 1927), without continuity correction.

    Raises:
        ValueError: there are no items.
    """
    if items < 1 or not 0 <= right <= items:
        raise ValueError(f"{right} of {items} is no proportion")
    share = right / items
    centre = share + z * z / (2 * items)
    half = z * math.sqrt(share * (1 - share) / items + z * z / (4 * items * items))
    scale = 1 + z * z / items
    low = 0.0 if right == 0 else (centre - half) / scale  # exact at the ends, without rounding errors
    high = 1.0 if right == items else (centre + half) / scale
    return low, high


@dataclass(frozen=True)
class McNemarComparison:
    """The comparison of a model with another one on the same items.

    Args:
        difference: accuracy minus that of the other model.
        only_other: number of items that only the other model has right.
        only_this: number of items that only this model has right.
    """

    difference: float
    only_other: int
    only_this: int
    p_value: float


def compare_decisions(other: Sequence[Decision], this: Sequence[Decision]) -> McNemarComparison:
    """Run the exact two-sided McNemar test (1947) on the items on which two models disagree."""
    pairs = [(a.right, b.right) for a, b in zip(other, this, strict=True)]
    only_other, only_this = pairs.count((True, False)), pairs.count((False, True))
    difference = (only_this - only_other) / len(pairs)
    return McNemarComparison(difference, only_other, only_this, mcnemar(only_other, only_this))


def mcnemar(b: int, c: int) -> float:
    """Return the exact two-sided p-value of b against c disagreements, binomial with probability 1/2."""
    n, fewer = b + c, min(b, c)
    term = total = 1  # binomial coefficients, as integers
    for k in range(fewer):
        term = term * (n - k) // (k + 1)
        total += term
    return min(1.0, 2 * total / (1 << n))
