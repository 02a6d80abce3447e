"""Quality by the length of the reference (Raganato, Scherrer and Tiedemann 2020, 5.1, Fig. 2), of several systems.

Length is the number of words between spaces. Every bucket is scored as a corpus of its own, and each system compared
with the first by paired bootstrap; a bucket with fewer than `LEAST` sentences is scored, but not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.names import LABELS
from sparsenmt.evaluation.significance import Comparison, compare
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value

EDGES = (10, 20, 30, 40, 50)
"""The last length of each bucket; a last one is open."""
LEAST = 10
ALL = "all"


@dataclass(frozen=True)
class Bucket:
    """Sentences of similar length."""

    name: str
    lines: list[int]
    """Their numbers, from 0."""


def buckets(references: Sequence[str], edges: Sequence[int]) -> list[Bucket]:
    """All sentences, then those of every range of lengths in which there are some.

    Args:
        references: a line each.
        edges: the last length of every bucket but the last, rising.
    """
    lengths = [len(line.split()) for line in references]
    found = [Bucket(ALL, list(range(len(references))))]
    for low, high in zip([-1, *edges], [*edges, None], strict=True):
        lines = [i for i, n in enumerate(lengths) if n > low and (high is None or n <= high)]
        if lines:
            first = max(low, 0) + 1
            name = f"over {low}" if high is None else f"up to {high}" if first == 1 else f"{first} to {high}"
            found.append(Bucket(name, lines))
    return found


@dataclass(frozen=True)
class BucketScore:
    """One system on one bucket by one metric; without a comparison, it is the first, or the bucket is small."""

    system: str
    bucket: str
    metric: str
    sentences: int
    score: float
    comparison: Comparison | None


def measure(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    edges: Sequence[int] = EDGES,
    metrics: Sequence[str] = ("bleu",),
    language: str = "en",
    resamples: int = 1000,
    seed: int = 12345,
) -> list[BucketScore]:
    """Score every system on every bucket.

    Args:
        systems: name -> translations, a line a reference; the first is the one that the others are compared with.

    Raises:
        UserError: as for `corpus_scores` and `compare`.
    """
    cells = []
    first = next(iter(systems))
    for bucket in buckets(references, edges):
        wanted = [references[i] for i in bucket.lines]
        baseline = [systems[first][i] for i in bucket.lines]
        for name, lines in systems.items():
            own = [lines[i] for i in bucket.lines]
            scores = corpus_scores(own, [wanted], metrics=metrics, language=language)
            compared: dict[str, Comparison] = {}
            if name != first and len(own) >= LEAST:
                found = compare(
                    own, baseline, [wanted], metrics=metrics, language=language, resamples=resamples, seed=seed
                )
                compared = {one.name: one for one in found}
            for score in scores:
                cells.append(
                    BucketScore(name, bucket.name, score.name, len(own), score.value, compared.get(score.name))
                )
    return cells


def report(cells: Sequence[BucketScore]) -> Report:
    """A row a metric, bucket and system."""
    rows: list[tuple[Value, ...]] = []
    for metric in dict.fromkeys(each.metric for each in cells):
        for each in (cell for cell in cells if cell.metric == metric):
            one = each.comparison
            tested = (one.difference.value, one.difference.low, one.difference.high, one.p_value) if one else [None] * 4
            rows.append((LABELS[metric], each.bucket, each.system, each.sentences, each.score, *tested))
    columns = (
        *(
            Column("metric"),
            Column("length"),
            Column("system"),
            Column("sentences", "count"),
            Column("score", "number"),
        ),
        *(Column("difference", "number"), Column("low", "number"), Column("high", "number"), Column("p", "number")),
    )
    notes = (
        "length: words of the reference; difference: from the first system, with its 95% interval and p-value",
        f"by paired bootstrap, in buckets of at least {LEAST} sentences",
    )
    return Report("by-length", (Table("by-length", "quality by length of the reference", columns, tuple(rows)),), notes)


def panels(cells: Sequence[BucketScore]) -> list[Panel]:
    """A diagram a metric: bars a bucket, a colour a system; the last ones are all sentences."""
    result = []
    for metric in dict.fromkeys(each.metric for each in cells):
        own = [each for each in cells if each.metric == metric]
        names = [*dict.fromkeys(each.bucket for each in own if each.bucket != ALL), ALL]
        places = {name: float(i) for i, name in enumerate(names)}
        series: dict[str, list[tuple[float, float | None]]] = {}
        for each in own:
            series.setdefault(each.system, []).append((places[each.bucket], each.score))
        counts = {each.bucket: each.sentences for each in own}
        ticks = [(place, f"{name} ({counts[name]:,})") for name, place in places.items()]
        label = "words of the reference (sentences)"
        result.append(Panel(label, LABELS[metric], series, style="bars", ticks=ticks))
    return result
