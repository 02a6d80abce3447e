"""What every head is worth: quality with one head of a site disabled in all layers (Raganato, Scherrer and Tiedemann
2020, 4.3, Table 4).

Each row is compared with the model that has all its heads, by paired bootstrap over the same sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsenmt.analysis.observe import SITE_NAMES
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.names import LABELS
from sparsenmt.evaluation.significance import Comparison, compare
from sparsenmt.model.sites import SiteName
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value

NONE = "none"
"""What is disabled in the row of the whole model."""


@dataclass(frozen=True)
class Ablated:
    """The model without one head, or, if ``head`` is None, with all."""

    head: int | None
    """From 1."""
    name: str
    """What the head does, where it is given; otherwise ``learned``."""
    scores: dict[str, float]
    comparisons: dict[str, Comparison]
    """With the model that has all heads; none for that one."""


@dataclass(frozen=True)
class AblationResult:
    """One model, all heads first."""

    model: str
    site: SiteName
    rows: list[Ablated]


def measure(
    model: str,
    site: SiteName,
    translations: Mapping[int | None, Sequence[str]],
    references: Sequence[str],
    names: Mapping[int, str],
    *,
    metrics: Sequence[str],
    language: str = "en",
    resamples: int = 1000,
    seed: int = 12345,
) -> AblationResult:
    """Score the translations of a model.

    Args:
        translations: head -> what the model without it makes of the source; None: with all heads.
        names: head -> what it does.

    Raises:
        UserError: as for `corpus_scores` and `compare`.
    """
    rows = []
    for head, lines in translations.items():
        scores = corpus_scores(lines, [references], metrics=metrics, language=language)
        compared: list[Comparison] = []
        if head is not None:
            compared = compare(
                lines,
                translations[None],
                [references],
                metrics=metrics,
                language=language,
                resamples=resamples,
                seed=seed,
            )
        values = {each.name: each.value for each in scores}
        name = NONE if head is None else names[head]
        rows.append(Ablated(head, name, values, {each.name: each for each in compared}))
    return AblationResult(model, site, rows)


def report(found: Sequence[AblationResult]) -> Report:
    """A row a metric and head."""
    rows: list[tuple[Value, ...]] = []
    for each in found:
        for metric in each.rows[0].scores:
            for row in each.rows:
                one = row.comparisons.get(metric)
                tested = (one.difference.value, one.difference.low, one.difference.high, one.p_value) if one else None
                label = "-" if row.head is None else str(row.head)
                place = (each.model, SITE_NAMES[each.site], LABELS[metric], label, row.name)
                rows.append((*place, row.scores[metric], *(tested or [None] * 4)))
    columns = (
        *(Column("model"), Column("site"), Column("metric"), Column("disabled"), Column("what_it_does")),
        *(Column("score", "number"), Column("difference", "number")),
        *(Column("low", "number"), Column("high", "number"), Column("p", "number")),
    )
    title = "quality with one head disabled in all layers"
    notes = ("difference: from all heads, with its 95% interval and p-value by paired bootstrap",)
    return Report("ablate-heads", (Table("ablate-heads", title, columns, tuple(rows)),), notes)


def panels(found: Sequence[AblationResult]) -> list[Panel]:
    """A diagram a metric: the difference that each head makes, a colour a model."""
    result = []
    for metric in found[0].rows[0].scores:
        heads = sorted({row.head: row.name for each in found for row in each.rows if row.head is not None}.items())
        places = {head: float(i) for i, (head, _) in enumerate(heads)}
        series: dict[str, list[tuple[float, float | None]]] = {}
        for each in found:
            rows = [(row.head, row.comparisons[metric]) for row in each.rows if row.head is not None]
            series[each.model] = [(places[head], one.difference.value) for head, one in rows]
        ticks = [(places[head], f"{head} {name}") for head, name in heads]
        title = f"{SITE_NAMES[found[0].site]}-attention"
        label = f"{LABELS[metric]}, difference from all heads"
        result.append(Panel("disabled head", label, series, title=title, style="bars", ticks=ticks))
    return result
