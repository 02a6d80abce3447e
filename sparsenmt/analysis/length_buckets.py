"""The quality of several systems by the length of the reference (Raganato, Scherrer and Tiedemann 2020, 5.1, Fig. 2).

Length is the number of words between spaces. Every bucket is scored as a corpus of its own, and each system compared
with the first by a paired test; a bucket with fewer than `LEAST` sentences is scored, but not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sparsenmt.analysis.compared_scores import SCORE_COLUMNS, ComparedScore, compared_scores
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.data.text import read_lines
from sparsenmt.errors import UserError
from sparsenmt.evaluation.significance import PairedTest
from sparsenmt.metric import METRICS
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns

EDGES = (10, 20, 30, 40, 50)
"""The greatest length of each bucket; the bucket after them has no limit."""
LEAST = 10
ALL = "all"


def measure_by_length(
    session: AnalysisSession,
    reference: Path,
    *,
    edges: Sequence[int] = EDGES,
    metrics: Sequence[str] = ("bleu",),
    test: PairedTest | None = None,
) -> AnalysisResult:
    """Make the report ``by-length``, of models and of files of translations.

    Args:
        reference: reference translation.
        edges: the greatest length of every bucket but the last, rising.
        test: None: the bootstrap.

    Raises:
        UserError: a file has another number of lines than the reference.
    """
    references = list(islice(read_lines(reference), session.limit))
    if not references:
        raise UserError("the file has no lines", where=str(reference), hint="Name a file of reference translations.")
    systems = _translations(session, reference, references)
    chosen, test = tuple(dict.fromkeys(metrics)), test or PairedTest()
    cells = measure(systems, references, edges=edges, metrics=chosen, test=test)
    settings = {
        **{"reference": str(reference), "edges": list(edges), "beam_size": session.beam_size},
        **{"significance": test.method, "resamples": test.resamples, "seed": test.seed},
    }
    return session.result(report(cells, test), lambda: curves(panels(cells)), settings=settings)


def _translations(session: AnalysisSession, reference: Path, references: Sequence[str]) -> dict[str, list[str]]:
    """Return the translations of every system. All files are read and checked before a model translates."""
    count = len(references)
    given = {label: session.read_beside(path, count, str(reference)) for label, path in session.translations.items()}
    if len(given) < len(session.labels) and len(session.lines) != count:
        raise UserError(
            f"it has {len(session.lines):,} lines, but {reference} has {count:,}",
            where=session.text_name,
            hint="Line n of one must belong to line n of the other.",
        )
    return {
        label: given[label] if label in given else [each.text for each in session.open(label, path).translate()]
        for label, path in session.labels.items()
    }


def buckets(references: Sequence[str], edges: Sequence[int]) -> dict[str, list[int]]:
    """Return the sentences of each bucket, from 0: of all lengths, then of every range of lengths that has any.

    Args:
        edges: the greatest length of every bucket but the last, rising.
    """
    lengths = [len(line.split()) for line in references]
    found = {ALL: list(range(len(references)))}
    for low, high in zip([-1, *edges], [*edges, None], strict=True):
        lines = [i for i, n in enumerate(lengths) if n > low and (high is None or n <= high)]
        if lines:
            first = max(low, 0) + 1
            name = f"over {low}" if high is None else f"up to {high}" if first == 1 else f"{first} to {high}"
            found[name] = lines
    return found


@dataclass(frozen=True)
class BucketScore:
    """One system on one bucket by one metric; the first system and small buckets have no comparison."""

    system: str
    bucket: str
    sentences: int
    score: ComparedScore


def measure(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    edges: Sequence[int] = EDGES,
    metrics: Sequence[str] = ("bleu",),
    test: PairedTest | None = None,
) -> dict[str, list[BucketScore]]:
    """Score every system on every bucket, by each metric.

    Args:
        systems: name -> translations, one for each reference; the first system is the baseline of the others.

    Raises:
        UserError: as for `compared_scores`.
    """
    first = next(iter(systems))
    cells: dict[str, list[BucketScore]] = {}
    for bucket, sentences in buckets(references, edges).items():
        chosen = {name: [lines[i] for i in sentences] for name, lines in systems.items()}
        wanted = [references[i] for i in sentences]
        for name, lines in chosen.items():
            baseline = chosen[first] if name != first and len(lines) >= LEAST else None
            scores = compared_scores(lines, wanted, baseline, metrics=metrics, test=test)
            for score in scores:
                cells.setdefault(score.metric, []).append(BucketScore(name, bucket, len(lines), score))
    return cells


def report(cells: Mapping[str, Sequence[BucketScore]], test: PairedTest | None = None) -> Report:
    """Make the table: one row for each metric, bucket and system."""
    rows = [
        (METRICS[metric].label, each.bucket, each.system, each.sentences, *each.score.cells)
        for metric, group in cells.items()
        for each in group
    ]
    heads = (*columns("text metric length system", "count sentences"), *SCORE_COLUMNS)
    notes = (
        "length: words of the reference; difference: from the first system, with its 95% interval and p-value",
        f"by {test or PairedTest()}, in buckets of at least {LEAST} sentences",
    )
    return Report("by-length", (Table("by-length", "quality by length of the reference", heads, rows),), notes)


def panels(cells: Mapping[str, Sequence[BucketScore]]) -> list[Panel]:
    """Draw one diagram for each metric: bars for each bucket, one colour for each system; all sentences last."""
    result = []
    for metric, group in cells.items():
        names = [*dict.fromkeys(each.bucket for each in group if each.bucket != ALL), ALL]
        places = {name: float(i) for i, name in enumerate(names)}
        series: dict[str, list[tuple[float, float | None]]] = {}
        for each in group:
            series.setdefault(each.system, []).append((places[each.bucket], each.score.score))
        counts = {each.bucket: each.sentences for each in group}
        ticks = [(place, f"{name} ({counts[name]:,})") for name, place in places.items()]
        label = "words of the reference (sentences)"
        result.append(Panel(label, METRICS[metric].label, series, style="bars", ticks=ticks))
    return result
