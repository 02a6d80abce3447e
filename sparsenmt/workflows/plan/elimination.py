"""Successive halving: many candidates on a few lines, the most promising ones on more, the last ones on all.

Karnin, Koren and Somekh (2013, Algorithm 2) drop the worse half in each round; here four in five are dropped, and each
round has five times as many lines. A candidate's merit is its speed, times the probability that it loses no more than
is allowed, over its excess beyond the other limits. A local search around the best one follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

C = TypeVar("C")

RATE = 5
"""One in five candidates is kept for the next round, which has five times as many lines."""
FEWEST_LINES = 40
"""Lines of the first round: of fewer than 30, the bootstrap makes no interval."""
FEWEST_KEPT = 4
"""Candidates that reach the next round, at least, beside the reference and the best one."""
_UNLIKELY = 0.1  # the probability where there are too few lines for an interval, and the loss is too large


@dataclass(frozen=True)
class Finding:
    """The measurement of a candidate on the lines of a round, relative to the reference.

    Args:
        speeds: of each turn, the reference's seconds over the candidate's.
        difference: in quality, from the reference; in the last round from the best. Positive is better.
        error: standard error of the difference; None: there are too few lines.
        excesses: by which share each other limit that is exceeded is; none: all are met.
    """

    speeds: tuple[float, ...]
    difference: float
    error: float | None = None
    excesses: tuple[float, ...] = ()

    @property
    def excess(self) -> float:
        """The share by which the limit that is exceeded most is exceeded; 0: none is."""
        return max(self.excesses, default=0.0)

    @property
    def speed(self) -> float:
        """The median of the turns."""
        return median(self.speeds)

    def equals(self, other: Finding) -> bool:
        """Return True if the turns of both overlap."""
        return max(min(self.speeds), min(other.speeds)) <= min(max(self.speeds), max(other.speeds))

    def shortfall(self, allowed: float) -> float:
        """Return the share of the allowed loss by which the loss exceeds it; 0: it does not."""
        return max(0.0, -self.difference - allowed) / max(allowed, 0.1)

    def distance(self, allowed: float) -> tuple[int, float]:
        """Return how many limits are missed, quality among them, and the largest share by which one is."""
        missed = [each for each in (self.shortfall(allowed), *self.excesses) if each]
        return len(missed), max(missed, default=0.0)

    def meets(self, allowed: float) -> bool:
        """Return True if quality and limits are met."""
        return self.difference >= -allowed and not self.excess

    def probability(self, allowed: float) -> float:
        """Return the probability that the loss is at most ``allowed``: that of a normal distribution."""
        room = self.difference + allowed
        if not self.error:
            return 1.0 if room >= 0 else _UNLIKELY
        return 0.5 * (1 + math.erf(room / self.error / math.sqrt(2)))

    def merit(self, allowed: float) -> float:
        """Return the figure by which candidates are kept."""
        return self.speed * self.probability(allowed) / (1 + self.excess) ** 8


def rounds_of(lines: int) -> list[int]:
    """Return the number of lines of each round, the last one with all."""
    found = [lines]
    while found[0] // RATE >= FEWEST_LINES:
        found.insert(0, found[0] // RATE)
    return found


def kept_of(candidates: int) -> int:
    """Return how many candidates of a round are kept, beside the reference and the best one."""
    return min(candidates, max(FEWEST_KEPT, math.ceil(candidates / RATE)))


def survivors(found: Mapping[C, Finding], allowed: float, reference: C) -> list[C]:
    """Return the candidates of the next round: the reference, the best in quality, and those of the most merit."""
    by_merit = sorted(found, key=lambda each: -found[each].merit(allowed))
    best = max(found, key=lambda each: found[each].difference)
    wanted = {reference, best, *by_merit[: kept_of(len(found))]}
    return [each for each in found if each in wanted]


def halve(
    candidates: Sequence[C],
    rounds: Sequence[int],
    measure: Callable[[Sequence[C], int], Mapping[C, Finding]],
    tune: Callable[[Sequence[C], int], Sequence[C]],
    *,
    allowed: float,
    reference: C,
) -> Mapping[C, Finding]:
    """Try candidates round by round; returns those of the last round.

    Args:
        rounds: lines of each round.
        measure: tries candidates on a number of lines.
        tune: chooses, for the candidates of the last round, what changes their time alone.
    """
    left = list(candidates)
    for lines in rounds[:-1]:
        left = survivors(measure(left, lines), allowed, reference)
    few = rounds[max(len(rounds) - 2, 0)]
    return measure(list(dict.fromkeys([*left, *tune(left, few)])), rounds[-1])


def climb(
    found: Mapping[C, Finding],
    neighbours: Callable[[C], Sequence[C]],
    rounds: Sequence[int],
    measure: Callable[[Sequence[C], int], Mapping[C, Finding]],
    tune: Callable[[Sequence[C], int], Sequence[C]],
    *,
    allowed: float,
    reference: C,
) -> Mapping[C, Finding]:
    """Try the neighbours of the fastest candidates that meet quality and limits, as long as there are new ones.

    A few lines may mislead the first rounds, all candidates alike: a local search after them depends on more lines.
    It continues with the fastest one and all whose turns overlap with its own. The round before the last one chooses
    `FEWEST_KEPT` neighbours of the most merit that are faster there.

    Args:
        found: of the last round.
        neighbours: of a candidate, those that differ from it in one choice.
        rounds, measure, tune, reference: as of `halve`.

    Returns:
        the candidates that were tried on all lines.
    """
    tried, few = set(found), rounds[max(len(rounds) - 2, 0)]
    while good := [each for each, finding in found.items() if finding.meets(allowed)]:
        best = max(good, key=lambda each: found[each].speed)
        fast = [each for each in good if found[each].equals(found[best])]
        left = [each for each in dict.fromkeys(n for one in fast for n in neighbours(one)) if each not in tried]
        tried.update(left)
        if not left:
            return measure(list(dict.fromkeys([*found, *tune([best], few)])), rounds[-1])
        seen = measure(list(dict.fromkeys([reference, best, *left])), few)
        likely = [each for each in left if seen[each].probability(allowed) > _UNLIKELY]
        faster = [each for each in likely if seen[each].speed > seen[best].speed]
        chosen = sorted(faster, key=lambda each: -seen[each].merit(allowed))[:FEWEST_KEPT]
        found = measure([*found, *chosen], rounds[-1])
    return found


def choose(found: Mapping[C, Finding], allowed: float, cost: Callable[[C], tuple[float, ...]]) -> tuple[C, bool]:
    """Return the chosen candidate, and True if it meets quality and limits.

    Of those that do, the fastest; of those whose turns overlap with the fastest one's, the one of the least cost. If
    none does, the nearest: the one that misses the fewest limits, and of such the one with the smallest share.

    Args:
        cost: of a candidate, to compare: how simple it is.
    """
    good = {each: finding for each, finding in found.items() if finding.meets(allowed)}
    if not good:
        return min(found, key=lambda each: (*found[each].distance(allowed), *cost(each))), False
    fastest = good[max(good, key=lambda each: good[each].speed)]
    return min((each for each in good if good[each].equals(fastest)), key=cost), True


def front(points: Mapping[C, Sequence[float]]) -> set[C]:
    """Return the candidates that no other one dominates: at least as good in every value, and better in one."""
    return {
        each
        for each, own in points.items()
        if not any(
            all(a >= b for a, b in zip(other, own, strict=True)) and tuple(other) != tuple(own)
            for other in points.values()
        )
    }
