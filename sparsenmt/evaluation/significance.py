"""The significance of the difference between two systems on the same segments, by one of two paired tests.

`bootstrap` (Koehn 2004; Efron and Tibshirani 1993, chapter 16): segments are drawn with replacement. The samples'
differences lie around their mean as the observed one would around 0 if the systems were equally good; the p-value is
the share that lies as far from this mean, on either side, as the observed difference from 0.

`randomization` (Riezler and Maxwell 2005): the outputs of the two systems for a segment are exchanged at random. If the
systems are equally good, this changes nothing; the p-value is the share of exchanges whose difference is at least as
large, on either side. Its assumptions hold for any number of segments, those of the bootstrap from a few dozen on.

The observed difference counts as a sample of its own in both (+1; Phipson and Smyth 2010). Intervals are always those
of the bootstrap.

Of few segments the bootstrap draws the same ones again and again: of one segment every sample is the text itself, of
two a quarter is each of them alone, and equally good systems are told apart half of the time. With fewer than `FEWEST`
segments there is no interval, and the p-value is that of randomization: of all exchanges if they are not too many. One
segment has no p-value, as its exchange gives the same difference. `benchmarks/significance.py` measures how often
equally good systems are told apart.

sacrebleu's own p-value is another figure, `sacrebleu_p`, from the same samples, which are sacrebleu's. That of its
``--paired-bs`` subtracts the mean of the absolute differences from these, which is a one-sided test in effect: at 0.05
it tells equally good systems apart in 10% of the cases. That of ``--paired-ar`` leaves out exchanges that give just the
observed difference. sacrebleu's code is not used: it takes its seed from the environment, and needs memory for all
samples at once.

These tests ask how two translations of a text would compare on another text, not how two methods compare: another seed
of training gives another model. `welch_interval` compares several trainings of each, and `seed_test` those that share
their seed, and with it the order of the data and what is drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
FEWEST = 30
"""The fewest segments of which the bootstrap can draw samples: of 20 its error rate at 0.05 is above 8%."""
LEVEL = 0.05
"""Differences with a smaller p-value are significant."""
_FORMULA = 3
"""Changes with the p-values: those that were kept by another formula are computed again. 1 was `sacrebleu_p`, 2 the
bootstrap of any number of segments."""
_MOST_EXCHANGED = 13
"""The most segments whose exchanges are all counted: 4,096, as the opposite of each gives the opposite difference."""
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
        fewest: segments below which the method gives way to all exchanges.
    """

    method: SignificanceMethod = "bootstrap"
    resamples: int = 1000
    seed: int = 12345
    fewest: int = FEWEST

    def __str__(self) -> str:
        return self._name(self.method)

    def _name(self, method: SignificanceMethod) -> str:
        return f"{_NAMES[method]}, {self.resamples:,} resample{'' if self.resamples == 1 else 's'}"

    def describe(self, segments: Iterable[int]) -> str:
        """Return the test in words, and the one in its place where there are few segments; arguments as of `few`."""
        counts = list(segments)
        usual = "" if counts and max(counts) < self.fewest else str(self)
        return "; ".join(filter(None, [usual, self.few(counts)]))

    def few(self, segments: Iterable[int]) -> str:
        """Return in words how few segments are tested; empty if there are enough.

        Args:
            segments: their number in each of the comparisons.
        """
        counts = sorted({count for count in segments if count < self.fewest})
        if not counts:
            return ""
        parts = ["one segment has no p-value"] if counts[0] == 1 else []
        exchanged = [count for count in counts if 1 < count <= _MOST_EXCHANGED]
        if exchanged:
            least = f", p at least {2 / 2 ** exchanged[0]:g} with {exchanged[0]}" if exchanged[0] < 6 else ""
            parts.append(f"all exchanges of the two outputs of a segment{least}")
        if counts[-1] > _MOST_EXCHANGED:
            parts.append(self._name("randomization"))
        named = ", ".join(map(str, counts))
        return f"with fewer than {self.fewest} segments ({named}): {'; '.join(parts)}; no interval"

    def record(self) -> dict[str, str | int]:
        """Return the settings for JSON."""
        return {"significance": self.method, "resamples": self.resamples, "seed": self.seed}

    @property
    def identity(self) -> str:
        """A word for everything that p-values depend on beside the translations and the metric."""
        return f"{self.method}/{_FORMULA}/{self.resamples}/{self.seed}/{self.fewest}"


BOOTSTRAP = PairedTest()
"""The usual test."""


@dataclass(frozen=True)
class Estimate:
    """A system's value on the whole corpus, with mean and 95% confidence interval over the samples.

    Args:
        low, high: None: there are too few segments for an interval.
    """

    value: float
    mean: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        """The number after the plus-minus sign."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2


@dataclass(frozen=True)
class Comparison:
    """Two systems by one metric; ``difference`` is ``system`` minus ``baseline``.

    Args:
        p_value: two-sided; None: there is a single segment.
        segments: number of lines, documents or blocks that were compared.
        sacrebleu_p: the p-value that sacrebleu prints; None: the metric is not one of those that it tests.
    """

    name: str
    system: Estimate
    baseline: Estimate
    difference: Estimate
    p_value: float | None
    segments: int
    sacrebleu_p: float | None = None

    def record(self) -> dict[str, float]:
        """Return ``difference``, ``segments`` and, where there are some, ``low``, ``high`` (95%) and p-values."""
        bounds = {"low": self.difference.low, "high": self.difference.high}
        p_values = {"p_value": self.p_value, "sacrebleu_p": self.sacrebleu_p}
        found = {"difference": self.difference.value, "segments": self.segments, **bounds, **p_values}
        return {name: value for name, value in found.items() if value is not None}


def compare(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    settings: ScoringSettings,
    test: PairedTest = BOOTSTRAP,
) -> list[Comparison]:
    """Compare two systems on the same lines by each metric; for d-BLEU segments are documents instead of lines.

    Raises:
        UserError: as for `corpus_scores`; or less than one resample; or another number of lines in the baseline.
    """
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
    return [_comparison(pair, (sampled[2 * i], sampled[2 * i + 1]), test) for i, pair in enumerate(pairs)]


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
    pair: tuple[Statistics, Statistics], exchanges: Iterable[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Compute the differences of two measurements after their rows were exchanged where the exchanges have a 1."""
    system, baseline = pair
    gaps = baseline.values - system.values
    ours, theirs = system.values.sum(0), baseline.values.sum(0)
    moved = (row for exchanged in exchanges for row in exchanged @ gaps)
    return np.array([system.score(ours + each) - baseline.score(theirs - each) for each in moved])


def _coins(test: PairedTest, rows: int) -> Iterator[NDArray[np.float64]]:
    """Draw 0 or 1 for each row and sample, a block of samples at a time."""
    random = np.random.default_rng(test.seed)
    # numpy takes 32 of them from a random number, and drops what is left at the end of a block: blocks of a multiple of
    # 32 samples give what sacrebleu draws at once.
    size = 32 * max(1, _BLOCK // (32 * rows))
    for first in range(0, test.resamples, size):
        shape = (min(size, test.resamples - first), rows)
        yield random.integers(2, size=shape, dtype=np.bool_).astype(np.float64)


def _all_exchanges(rows: int) -> NDArray[np.float64]:
    """Return the exchanges that leave the last row; the others are their opposites."""
    numbers = np.arange(2 ** (rows - 1))[:, None]
    return (numbers >> np.arange(rows) & 1).astype(np.float64)


def _comparison(
    pair: tuple[Statistics, Statistics], sampled: tuple[NDArray[np.float64], NDArray[np.float64]], test: PairedTest
) -> Comparison:
    (system, baseline), (ours, theirs), rows = pair, sampled, len(pair[0].values)
    value, reference = system.score(system.values.sum(0)), baseline.score(baseline.values.sum(0))
    observed, few, exchanged = abs(value - reference), rows < test.fewest, np.empty(0)
    if test.method == "randomization" or (few and rows > _MOST_EXCHANGED):
        exchanged = np.abs(_exchanged_differences(pair, _coins(test, rows)))
    if test.method == "bootstrap":
        differences = ours - theirs
        extreme = np.abs(differences - differences.mean()) >= observed - _ROUNDING
        sacrebleus = np.abs(differences) - np.abs(differences).mean() > observed
    else:
        extreme, sacrebleus = exchanged >= observed - _ROUNDING, exchanged > observed + _ROUNDING
    metric = METRICS.get(system.name)  # None: a metric of language models
    tested_there = metric is not None and metric.validates and str(metric.scorer).startswith("sacrebleu_scorer:")
    return Comparison(
        name=system.name,
        system=_estimate(value, ours, few=few),
        baseline=_estimate(reference, theirs, few=few),
        difference=_estimate(value - reference, ours - theirs, few=few),
        p_value=_p_of_few(pair, observed, exchanged) if few else _share(extreme),
        segments=rows,
        sacrebleu_p=_share(sacrebleus) if tested_there else None,
    )


def _p_of_few(pair: tuple[Statistics, Statistics], observed: float, exchanged: NDArray[np.float64]) -> float | None:
    """Return the p-value by all exchanges of the segments, or by the random ones if all are too many.

    Args:
        exchanged: (samples) distances of the systems after random exchanges.
    """
    rows = len(pair[0].values)
    if rows < 2:
        return None
    if rows > _MOST_EXCHANGED:
        return _share(exchanged >= observed - _ROUNDING)
    distances = np.abs(_exchanged_differences(pair, [_all_exchanges(rows)]))
    return float(np.mean(distances >= observed - _ROUNDING))


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


@dataclass(frozen=True)
class SeedTest:
    """The paired t-test of two sides whose trainings share their seeds (Student 1908).

    Args:
        seeds: their number, n.
        low, high: the 95% interval of the mean difference: plus and minus t s / sqrt(n), with the sample standard
            deviation s of the differences and n - 1 degrees of freedom.
        p_value: two-sided.
    """

    seeds: int
    difference: float
    low: float
    high: float
    p_value: float


def seed_test(differences: Sequence[float]) -> SeedTest | None:
    """Test the differences of trainings with the same seed; None if there are fewer than two."""
    count = len(differences)
    if count < 2:
        return None
    mean, error = float(np.mean(differences)), float(np.std(differences, ddof=1)) / count**0.5
    if not error:
        return SeedTest(count, mean, mean, mean, float(mean == 0))
    half = _student_quantile(count - 1) * error
    return SeedTest(count, mean, mean - half, mean + half, _student_tails(abs(mean) / error, count - 1))


def _student_quantile(freedom: float) -> float:
    """Return the 97.5% quantile of Student's distribution."""
    angles, area = _student_area(freedom)
    return float(np.sqrt(freedom) * np.tan(np.interp(0.95, area, angles)))


def _student_tails(t: float, freedom: float) -> float:
    """Return the probability of Student's distribution beyond t on both sides."""
    angles, area = _student_area(freedom)
    return float(1 - np.interp(np.arctan(t / np.sqrt(freedom)), angles, area))


def _student_area(freedom: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return angles, and the probability of Student's distribution between those and their opposites.

    With t = sqrt(freedom) tan(angle), its density is proportional to cos(angle)^(freedom - 1).
    """
    angles = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return angles, area / area[-1]


def _share(extreme: NDArray[np.bool_]) -> float:
    """Return the share of the samples that are extreme, the observed one among them."""
    return (int(np.count_nonzero(extreme)) + 1) / (len(extreme) + 1)


def _estimate(value: float, samples: NDArray[np.float64], *, few: bool) -> Estimate:
    """Estimate the mean and, unless there are few segments, the interval that excludes 2.5% of the samples a side."""
    ordered = np.sort(samples)
    outside = len(ordered) // 40
    low, high = (None, None) if few else (float(ordered[outside]), float(ordered[-1 - outside]))
    return Estimate(value, float(samples.mean()), low, high)
