"""The results of an experiment: one model on one text by one metric, and means over the seeds of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from sparsenmt.evaluation.significance import LEVEL, SeedTest, seed_test, welch_interval
from sparsenmt.metric import TEXT_METRICS, lower_is_better, metric_label
from sparsenmt.report.tables import Column, Table, Value, columns

SCATTER = "smaller than the seeds' scatter: Welch's 95% interval of the difference of means holds 0"
BY_SEED = "paired t-test of the differences of the same seed"
SEEDS_NOTE = (
    f"deviation: sample standard deviation; within scatter: difference {SCATTER}; p of seeds, and from seeds low to "
    f"seeds high the 95% interval: {BY_SEED}"
)
"""The columns of `seeds_table`."""
Labels = tuple[str, ...]
"""One label for each of several axes."""


@dataclass(frozen=True)
class Observation:
    """The results of one variant on one set by one metric.

    Args:
        labels: axis -> label, `set` and `metric` included.
        values: name in `recipe.sweep.CellValue` -> value; empty while the variant is not finished.
        test: `Evaluation.against` its baseline; None: it has no baseline.
        signature: that of the metric: how the score was made.
        group: name of the variant without its seed.
        baseline: group that this one is compared with; None: it has no baseline.
    """

    variant: str
    labels: Mapping[str, str]
    values: Mapping[str, float | None]
    test: Mapping[str, float] | None = None
    sentences: int | None = None
    signature: str | None = None
    group: str | None = None
    baseline: str | None = None

    @property
    def place(self) -> Labels:
        """The cell of a table of means over seeds: the group, or the variant itself, the set and the metric."""
        return (self.group or self.variant, *(self.labels.get(axis, "") for axis in ("set", "metric")))

    @property
    def mark(self) -> str:
        """`*`: significantly worse; `+`: significantly better."""
        if self.test is None or self.test.get("p_value", 1) >= LEVEL or not self.test["difference"]:
            return ""
        metric = self.labels.get("metric")
        worse = (self.test["difference"] < 0) is not (metric is not None and lower_is_better(metric))
        return "*" if worse else "+"


@dataclass(frozen=True)
class SeedMeans:
    """The quality of the finished seeds of a variant on one set by one metric, and that of its baseline.

    Args:
        first: the first of its observations, for its labels.
        values: one for each seed.
        baseline: one for each seed; empty: it has no baseline.
        paired: the test of the seeds that both have; None: fewer than two.
    """

    first: Observation
    values: Sequence[float]
    baseline: Sequence[float]
    paired: SeedTest | None = None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation; None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the difference of the means; None if one of them is of a single seed."""
        return welch_interval(self.values, self.baseline)

    @property
    def within_scatter(self) -> bool | None:
        """True if the difference to the baseline is smaller than the seeds' scatter: the interval holds 0."""
        return None if self.interval is None else self.interval[0] <= 0 <= self.interval[1]

    @property
    def mark(self) -> str:
        """That of `Observation.mark`, by the test paired by seed."""
        tested = None if self.paired is None else {"difference": self.paired.difference, "p_value": self.paired.p_value}
        return replace(self.first, test=tested).mark


def seed_means(observations: Sequence[Observation]) -> dict[Labels, SeedMeans]:
    """Return the means over seeds, by variant without seed, set and metric."""
    found: dict[Labels, list[Observation]] = {}
    for each in observations:
        if each.values.get("quality") is not None:
            found.setdefault(each.place, []).append(each)

    def values(place: Labels) -> dict[str, float]:
        known = {each.labels.get("seed", ""): each.values["quality"] for each in found.get(place, [])}
        return {seed: value for seed, value in known.items() if value is not None}

    means = {}
    for place, (first, *_) in found.items():
        own = values(place)
        theirs = {} if first.baseline is None else values((first.baseline, *place[1:]))
        paired = seed_test([value - theirs[seed] for seed, value in own.items() if seed in theirs])
        means[place] = SeedMeans(first, list(own.values()), list(theirs.values()), paired)
    return means


def signature_notes(observations: Iterable[Observation]) -> list[str]:
    """Return a note with the signature of every metric, each once."""
    signed = dict.fromkeys((each.labels["metric"], each.signature) for each in observations if each.signature)
    return [f"{metric_label(metric)}: {signature}" for metric, signature in signed]


def seed_count(observations: Sequence[Observation]) -> int:
    """Return the number of seeds."""
    return len({each.labels["seed"] for each in observations if "seed" in each.labels})


def seeds_table(observations: Sequence[Observation], axes: Sequence[str] = ()) -> Table:
    """Make the table of means over seeds, with two tests of their differences: by scatter, and paired by seed."""
    of_texts = any(each.labels.get("metric") in TEXT_METRICS for each in observations)
    kind = "number" if of_texts else "score"  # bits per character differ in the third decimal
    heads = (
        *(Column("variant"), *(Column(axis, shown=False) for axis in axes), *columns("text set metric")),
        *columns("count seeds", f"{kind} mean deviation difference low high", "text within_scatter"),
        *columns(f"{kind} seeds_low seeds_high", "number p_of_seeds"),
    )
    rows: list[tuple[Value, ...]] = []
    for (group, *_), each in seed_means(observations).items():
        labels = [each.first.labels.get(axis) for axis in (*axes, "set", "metric")]
        difference = mean(each.values) - mean(each.baseline) if each.baseline else None
        within = {None: None, True: "yes", False: "no"}[each.within_scatter]
        measured = (len(each.values), mean(each.values), each.deviation, difference)
        paired = each.paired
        by_seed = (None, None, None) if paired is None else (paired.low, paired.high, paired.p_value)
        rows.append((group, *labels, *measured, *(each.interval or (None, None)), within, *by_seed))
    return Table("seeds", "quality over seeds", heads, tuple(rows))
