"""The significance of the difference between two systems on the same segments, by one of two paired tests.

`bootstrap` (Koehn 2004; Efron and Tibshirani 1993, chapter 16): segments are drawn with replacement. The samples'
differences lie around their mean as the observed one would around 0 if the systems were equally good; the p-value is
the share that lies as far from this mean, on either side, as the observed difference from 0.

`randomization` (Riezler and Maxwell 2005): the outputs of the two systems for a segment are exchanged at random. If the
systems are equally good, this changes nothing; the p-value is the share of exchanges whose difference is at least as
large, on either side. Its assumptions hold for any number of segments, those of the bootstrap from a few dozen on.

The observed difference counts as a sample of its own in both (+1; Phipson and Smyth 2010). Intervals are always those
of the bootstrap. `benchmarks/significance.py` measures how often equally good systems are told apart.

sacrebleu's own p-value is another figure, `sacrebleu_p`, from the same samples, which are sacrebleu's. That of its
``--paired-bs`` subtracts the mean of the absolute differences from these, which is a one-sided test in effect: at 0.05
it tells equally good systems apart in 10% of the cases. That of ``--paired-ar`` leaves out exchanges that give just the
observed difference. sacrebleu's code is not used: it takes its seed from the environment, and needs memory for all
samples at once.

These tests ask how two translations of a text would compare on another text, not how two methods compare: another seed
of training gives another model. `welch_interval` compares several trainings of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import Statistics, check_lines, statistics
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.metric import METRICS
from sparsenmt.recipe.choices import SignificanceMethod

_NAMES: Mapping[SignificanceMethod, str] = {
    "bootstrap": "paired bootstrap",
    "randomization": "paired approximate randomization",
}
_FORMULA = 2
"""Changes with the p-values: those that were kept by another formula are computed again. 1 was `sacrebleu_p`."""
_ROUNDING = 1e-9
"""Differences, in percent, that are this close to each other are equal but for rounding."""
_BLOCK = 1 << 22
"""Random bits that are drawn at once, about."""


@dataclass(frozen=True)
class PairedTest:
    """A test by its method and its random samples.

    Args:
        resamples: number of samples, of either method.
        seed: of the samples; the default is sacrebleu's.
    """

    method: SignificanceMethod = "bootstrap"
    resamples: int = 1000
    seed: int = 12345

    def __str__(self) -> str:
        return f"{_NAMES[self.method]}, {self.resamples:,} resample{'' if self.resamples == 1 else 's'}"

    def record(self) -> dict[str, str | int]:
        """Return the settings for JSON."""
        return {"significance": self.method, "resamples": self.resamples, "seed": self.seed}

    @property
    def identity(self) -> str:
        """A word for everything that p-values depend on beside the translations and the metric."""
        return f"{self.method}/{_FORMULA}/{self.resamples}/{self.seed}"


@dataclass(frozen=True)
class Estimate:
    """A system's value on the whole corpus, with mean and 95% confidence interval over the samples."""

    value: float
    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The number after the plus-minus sign."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Comparison:
    """Two systems by one metric; ``difference`` is ``system`` minus ``baseline``.

    Args:
        p_value: two-sided.
        sacrebleu_p: the p-value that sacrebleu prints; None: the metric is not one of those that it tests.
    """

    name: str
    system: Estimate
    baseline: Estimate
    difference: Estimate
    p_value: float
    sacrebleu_p: float | None = None


def compare(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    settings: ScoringSettings,
    test: PairedTest | None = None,
) -> list[Comparison]:
    """Compare two systems on the same lines by each metric; for d-BLEU segments are documents instead of lines.

    Args:
        test: None: the bootstrap.

    Raises:
        UserError: as for `corpus_scores`; or less than one resample; or another number of lines in the baseline.
    """
    test = test or PairedTest()
    if test.resamples < 1:
        hint = "Take 1000, for example."
        raise UserError(f"the test needs at least one resample, not {test.resamples}", where="--resamples", hint=hint)
    check_lines(baseline, hypotheses, "the baseline")
    measured = (statistics(lines, references, settings) for lines in (hypotheses, baseline))
    return compare_statistics(list(zip(*measured, strict=True)), test)


def compare_statistics(pairs: Sequence[tuple[Statistics, Statistics]], test: PairedTest) -> list[Comparison]:
    """Compare two systems by the statistics of their segments.

    Args:
        pairs: for each metric, the statistics of the system and of the baseline.
    """
    sampled = _bootstrap([one for pair in pairs for one in pair], test)
    differences = [ours - theirs for ours, theirs in zip(sampled[::2], sampled[1::2], strict=True)]
    exchanged = _exchanged_differences(pairs, test) if test.method == "randomization" else differences
    return [
        _comparison(pair, (sampled[2 * index], sampled[2 * index + 1]), exchanged[index], test.method)
        for index, pair in enumerate(pairs)
    ]


def _bootstrap(measured: Sequence[Statistics], test: PairedTest) -> list[NDArray[np.float64]]:
    """Compute each measurement's value on every sample; measurements with equally many rows share the samples."""
    values = [np.empty(test.resamples) for _ in measured]
    for rows in {len(one.values) for one in measured}:
        random = np.random.default_rng(test.seed)
        alike = [(one, sampled) for one, sampled in zip(measured, values, strict=True) if len(one.values) == rows]
        for sample in range(test.resamples):
            chosen = random.choice(rows, size=rows, replace=True)
            times = np.bincount(chosen, minlength=rows).astype(np.float64)
            for one, sampled in alike:
                sampled[sample] = one.score(times @ one.values)
    return values


def _exchanged_differences(
    pairs: Sequence[tuple[Statistics, Statistics]], test: PairedTest
) -> list[NDArray[np.float64]]:
    """Compute the differences of every pair of measurements after their rows were exchanged at random."""
    found = []
    for system, baseline in pairs:
        gaps = baseline.values - system.values
        ours, theirs = system.values.sum(0), baseline.values.sum(0)
        moved = (row for exchanged in _coins(test, len(gaps)) for row in exchanged @ gaps)
        found.append(np.array([system.score(ours + each) - baseline.score(theirs - each) for each in moved]))
    return found


def _coins(test: PairedTest, rows: int) -> Iterator[NDArray[np.float64]]:
    """Draw 0 or 1 for each row and sample, a block of samples at a time."""
    random = np.random.default_rng(test.seed)
    # numpy takes 32 of them from a random number, and drops what is left at the end of a block: blocks of a multiple of
    # 32 samples give what sacrebleu draws at once.
    size = 32 * max(1, _BLOCK // (32 * rows))
    for first in range(0, test.resamples, size):
        shape = (min(size, test.resamples - first), rows)
        yield random.integers(2, size=shape, dtype=np.bool_).astype(np.float64)


def _comparison(
    pair: tuple[Statistics, Statistics],
    sampled: tuple[NDArray[np.float64], NDArray[np.float64]],
    exchanged: NDArray[np.float64],
    method: SignificanceMethod,
) -> Comparison:
    (system, baseline), (ours, theirs) = pair, sampled
    value, reference = system.score(system.values.sum(0)), baseline.score(baseline.values.sum(0))
    observed, distances = abs(value - reference), np.abs(exchanged)
    if method == "bootstrap":
        extreme = np.abs(exchanged - exchanged.mean()) >= observed - _ROUNDING
        sacrebleus = distances - distances.mean() > observed
    else:
        extreme = distances >= observed - _ROUNDING
        sacrebleus = distances > observed + _ROUNDING
    metric = METRICS.get(system.name)  # None: a metric of language models
    tested_there = metric is not None and metric.validates and metric.scorer.startswith("sacrebleu_scorer:")
    return Comparison(
        name=system.name,
        system=_estimate(value, ours),
        baseline=_estimate(reference, theirs),
        difference=_estimate(value - reference, ours - theirs),
        p_value=_share(extreme),
        sacrebleu_p=_share(sacrebleus) if tested_there else None,
    )


def welch_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the difference of two means, of independent trainings (Welch 1947).

    The difference plus and minus t s, with s^2 = s1^2 / n1 + s2^2 / n2 from the sample variances, and t the 97.5%
    quantile of Student's distribution with s^4 / (s1^4 / (n1^2 (n1 - 1)) + s2^4 / (n2^2 (n2 - 1))) degrees of freedom.

    Args:
        ours: the values of one side's seeds; the two sides may have different numbers of them.

    Returns:
        None if a side has fewer than two values.
    """
    if min(len(ours), len(theirs)) < 2:
        return None
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (ours, theirs)]
    difference, square = float(np.mean(ours) - np.mean(theirs)), sum(parts)
    if not square:
        return difference, difference
    freedom = square**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (ours, theirs), strict=True))
    half = _student_quantile(freedom) * square**0.5
    return difference - half, difference + half


def _student_quantile(freedom: float) -> float:
    """Return the 97.5% quantile of Student's distribution.

    With t = sqrt(freedom) tan(angle), its density is proportional to cos(angle)^(freedom - 1).
    """
    angles = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(freedom) * np.tan(np.interp(0.95 * area[-1], area, angles)))


def _share(extreme: NDArray[np.bool_]) -> float:
    """Return the share of the samples that are extreme, the observed one among them."""
    return (int(np.count_nonzero(extreme)) + 1) / (len(extreme) + 1)


def _estimate(value: float, samples: NDArray[np.float64]) -> Estimate:
    """Estimate the mean and the interval that excludes 2.5% of the samples on either side."""
    ordered = np.sort(samples)
    outside = len(ordered) // 40
    return Estimate(value, float(samples.mean()), float(ordered[outside]), float(ordered[-1 - outside]))
