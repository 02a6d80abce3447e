"""Verdicts by rule: intervals of figures, parts of a claim, and the claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from sparsenmt.evaluation.significance import seed_test
from tools.claims.record import Claim, Common, Figure, Part, scatter_of

Verdict = Literal["holds", "holds in part", "does not hold", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("holds", "holds in part", "does not hold", "undecided")


@dataclass(frozen=True)
class Measurement:
    """A figure with its interval.

    Args:
        values: one for each seed; one value of a single training, or of a mean that alone is recorded.
        low, high: of the 95% interval; infinite where the scatter is not measured, the value itself where a figure is
            not one of trainings.
        deviation: over seeds.
        p: the recorded p-value, which knows more decimals, or that of the paired test by seed.
    """

    value: float
    low: float
    high: float
    values: Sequence[float]
    deviation: float | None = None
    p: float | None = None


def measure(claim: Claim, name: str, common: Common) -> Measurement | None:
    """Return a figure with its interval; None: it is not measured.

    With several seeds the interval is that of the t-test paired by seed (`seed_test`). With one seed it is the
    difference plus and minus the scatter of two single trainings, or the recorded interval where this is wider. Without
    a scatter it is the recorded interval, or the value alone.
    """
    figure = claim.figures[name]
    values = values_by_seed(claim, name)
    value, deviation, low, high, p = figure.value, figure.deviation, figure.low, figure.high, figure.p
    if figure.pair and value is None:
        first, second = (measure(claim, other, common) for other in figure.pair)
        if first is None or second is None:
            return None
        value = _joined(figure, first.value, second.value)
    tested = seed_test(list(values.values()))
    if values:
        value = mean(values.values())
        deviation = stdev(values.values()) if len(values) > 1 else None
    if value is None:
        return None
    if tested is not None:
        return Measurement(value, tested.low, tested.high, list(values.values()), deviation, p or tested.p_value)
    half = scatter_of(figure, common.scatters)
    half = math.inf if half is None else half
    low = min(value if low is None else low, value - half)
    high = max(value if high is None else high, value + half)
    return Measurement(value, low, high, list(values.values()) or [value], deviation, p)


def values_by_seed(claim: Claim, name: str) -> dict[int, float]:
    """Return the values of a figure by seed; of two figures those of the seeds that both have."""
    figure = claim.figures[name]
    if figure.values or not figure.pair:
        return dict(figure.values)
    first, second = (values_by_seed(claim, other) for other in figure.pair)
    return {seed: _joined(figure, first[seed], second[seed]) for seed in first if seed in second}


def _joined(figure: Figure, first: float, second: float) -> float:
    """Return the difference of two values, or their ratio, in percent if that is the figure's unit."""
    if figure.difference is not None:
        return first - second
    return first / second * (100 if figure.unit == "%" else 1)


def deciding(claim: Claim, part: Part, common: Common) -> list[str]:
    """Return the figures that decide a part: the planned ones as soon as all of them are measured."""
    planned = [measure(claim, name, common) is not None for name in part.planned]
    return part.planned if planned and all(planned) else part.figures


def judge_figure(part: Part, found: Measurement) -> Verdict:
    """Return the verdict of one figure by the rule of a part."""
    least = -math.inf if part.at_least is None else part.at_least
    most = math.inf if part.at_most is None else part.at_most
    if found.high < least or found.low > most:
        return "does not hold"
    inside = least - part.tolerance <= found.low and found.high <= most + part.tolerance
    return "holds" if inside else "undecided"


def judge_part(claim: Claim, part: Part, common: Common) -> Verdict:
    """Return the verdict of a part: all its figures must lie in the range."""
    found = [measure(claim, name, common) for name in deciding(claim, part, common)]
    verdicts = ["undecided" if each is None else judge_figure(part, each) for each in found]
    for verdict in ("does not hold", "undecided"):
        if verdict in verdicts:
            return verdict
    return "holds"


def combine(parts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of a claim: as its parts, if all have the same; in part, if one holds and another does not, or
    not yet; and it does not hold if a part fails and none holds."""
    if "holds" in parts:
        return "holds" if set(parts) == {"holds"} else "holds in part"
    return "does not hold" if "does not hold" in parts else "undecided"


def judge(claim: Claim, common: Common) -> Verdict:
    """Return the verdict of a claim by the rules of its parts."""
    return combine([judge_part(claim, part, common) for part in claim.parts])


@dataclass(frozen=True)
class Evidence:
    """The trainings behind the figures that decide a claim.

    Args:
        measured: False: no figure that decides is there yet.
        seeds: of each figure; empty: nothing was trained.
        budgets: parts of the usual training; empty: it is not a question of training.
        enough: True if each figure is of the full budget, or of two seeds and more, or of no training.
    """

    measured: bool
    seeds: Sequence[int]
    budgets: Sequence[float]
    enough: bool

    def __str__(self) -> str:
        if not self.measured:
            return "not measured"
        if not self.seeds:
            return "nothing trained"
        fewest, most = min(self.seeds), max(self.seeds)
        seeds = ("one seed" if most == 1 else f"{most} seeds") if fewest == most else f"{fewest} to {most} seeds"
        if not self.budgets:
            return seeds
        least, largest = f"{min(self.budgets):.0%}", f"{max(self.budgets):.0%}"
        share = least if least == largest else f"{least} to {largest}"
        return f"{share} of the budget, {seeds}"


def evidence(claim: Claim, common: Common) -> Evidence:
    """Return the trainings behind the verdict of a claim."""
    names = [name for part in claim.parts for name in deciding(claim, part, common)]
    runs = [(claim.run_of(name), measure(claim, name, common)) for name in names]
    trained = [(run, len(found.values)) for run, found in runs if run.seeds and found is not None]
    return Evidence(
        measured=any(found is not None for _, found in runs),
        seeds=[seeds for _, seeds in trained],
        budgets=[run.budget for run, _ in trained if run.budget is not None],
        enough=all(seeds > 1 or (run.budget is not None and run.budget >= 1) for run, seeds in trained),
    )
