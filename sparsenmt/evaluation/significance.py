"""Paired bootstrap resampling (Koehn 2004): the significance of the difference between two systems.

Samples, statistic, mean and interval are those of sacrebleu's ``--paired-bs``, with the same numbers for BLEU, chrF and
TER (a test compares them). ROUGE is resampled in the same way, over its sentences. sacrebleu's own class is not used:
it takes its seed from the environment, needs memory for all samples at once, and finds a system significantly different
from itself, since it counts only differences above, not at, the observed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import Statistics, check_lines, statistics
from sparsenmt.evaluation.scorer import ScoringSettings

DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345  # sacrebleu's


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
    """Two systems by one metric; ``difference`` is ``system`` minus ``baseline``."""

    name: str
    system: Estimate
    baseline: Estimate
    difference: Estimate
    p_value: float


def compare(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    settings: ScoringSettings,
    *,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = DEFAULT_SEED,
) -> list[Comparison]:
    """Compare two systems on the same lines by each metric; for d-BLEU documents are resampled instead of lines.

    The p-value is two-sided: the share of samples whose absolute difference, less the mean of these, is at least as
    large as the difference on the whole corpus, which counts as a sample, too.

    Raises:
        UserError: as for `corpus_scores`; or less than one resample; or another number of lines in the baseline.
    """
    if resamples < 1:
        hint = "Take 1000, for example."
        raise UserError(f"the bootstrap needs at least one resample, not {resamples}", where="--resamples", hint=hint)
    check_lines(baseline, hypotheses, "the baseline")
    measured = (statistics(lines, references, settings) for lines in (hypotheses, baseline))
    both = list(zip(*measured, strict=True))
    sampled = _resample([one for pair in both for one in pair], resamples, seed)
    return [
        _comparison(system, reference, sampled[2 * index], sampled[2 * index + 1])
        for index, (system, reference) in enumerate(both)
    ]


def _resample(measured: Sequence[Statistics], resamples: int, seed: int) -> list[NDArray[np.float64]]:
    """Compute each measurement's value on every sample; measurements with equally many rows share the samples."""
    values = [np.empty(resamples) for _ in measured]
    for rows in {len(one.values) for one in measured}:
        random = np.random.default_rng(seed)
        alike = [(one, sampled) for one, sampled in zip(measured, values, strict=True) if len(one.values) == rows]
        for sample in range(resamples):
            chosen = random.choice(rows, size=rows, replace=True)
            times = np.bincount(chosen, minlength=rows).astype(np.float64)
            for one, sampled in alike:
                sampled[sample] = one.score(times @ one.values)
    return values


def _comparison(
    system: Statistics, baseline: Statistics, system_samples: NDArray[np.float64], baseline_samples: NDArray[np.float64]
) -> Comparison:
    value, reference = system.score(system.values.sum(0)), baseline.score(baseline.values.sum(0))
    distances = np.abs(system_samples - baseline_samples)
    extreme = np.count_nonzero(distances - distances.mean() >= abs(value - reference))
    return Comparison(
        name=system.name,
        system=_estimate(value, system_samples),
        baseline=_estimate(reference, baseline_samples),
        difference=_estimate(value - reference, system_samples - baseline_samples),
        p_value=(int(extreme) + 1) / (len(distances) + 1),
    )


def _estimate(value: float, samples: NDArray[np.float64]) -> Estimate:
    """Estimate the mean and the interval that excludes 2.5% of the samples on either side."""
    ordered = np.sort(samples)
    outside = len(ordered) // 40
    return Estimate(value, float(samples.mean()), float(ordered[outside]), float(ordered[-1 - outside]))
