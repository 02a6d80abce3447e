"""The translation quality of a model with one head of a site disabled in all layers (Raganato, Scherrer and Tiedemann
2020, 4.3, Table 4).

Each row is compared with the model that has all its heads, by a paired test over the same sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.analysis.compared_scores import SCORE_COLUMNS, ComparedScore, compared_scores, signature_notes, test_note
from sparsenmt.analysis.labels import SITE_NAMES, site_title
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.evaluation.scorer import ScoringOptions, ScoringSettings
from sparsenmt.evaluation.significance import BOOTSTRAP, PairedTest
from sparsenmt.metric import METRICS
from sparsenmt.model.sites import SiteName
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns

DEFAULT = ScoringOptions(("bleu", "chrf"))
NONE = "none"
"""The name of the disabled head in the row of the whole model."""


def measure_head_ablation(
    session: AnalysisSession,
    reference: Path,
    *,
    site: SiteName = "encoder_self",
    heads: Sequence[int] = (),
    scoring: ScoringOptions = DEFAULT,
    documents: Path | None = None,
    test: PairedTest = BOOTSTRAP,
) -> AnalysisResult:
    """Make the report ``ablate-heads``.

    Args:
        reference: reference translation of the text.
        heads: heads to disable, from 1; empty: each in turn.
        scoring: without metrics: BLEU and chrF.
        documents: document ids of the text, for d-BLEU; a model of blocks then translates blocks.

    Raises:
        UserError: a model has no such head, or it cannot be scored like this.
    """
    scoring = scoring.with_default(DEFAULT.metrics)
    references = session.read_beside(reference, len(session.lines), session.text_name)
    scoring, settings = session.scoring_settings(scoring, documents, references)
    found = {}
    for model in session.opened():
        names = model.check_heads(site, heads)
        translations: dict[int | None, list[str]] = {None: model.texts(settings.documents)}
        for head in sorted(set(heads)) or names:
            with model.bundle.model.disable_heads(site, [head]):
                translations[head] = model.texts(settings.documents, f", without head {head}")
        found[model.label] = measure(translations, references, names, settings, test=test)
    common = {"beam_size": session.beam_size, **scoring.record(), **test.record()}
    return session.result(
        report(found, site, test),
        lambda: curves(panels(found, site)),
        settings={"reference": str(reference), "site": site, **common},
        caption="with the 95% interval of every difference",
    )


@dataclass(frozen=True)
class HeadScores:
    """The model without one head, or, if ``head`` is None, with all heads."""

    head: int | None
    """From 1."""
    name: str
    """The pattern of a fixed head, otherwise ``learned``."""
    scores: dict[str, ComparedScore]
    """By metric; compared with the model that has all heads."""


def measure(
    translations: Mapping[int | None, Sequence[str]],
    references: Sequence[str],
    names: Mapping[int, str],
    settings: ScoringSettings,
    *,
    test: PairedTest = BOOTSTRAP,
) -> list[HeadScores]:
    """Score the translations of a model, those with all heads first.

    Args:
        translations: head -> translations by the model without it; None: with all heads.
        names: head -> its name.

    Raises:
        UserError: as for `compared_scores`.
    """
    rows = []
    for head, lines in translations.items():
        baseline = None if head is None else translations[None]
        scores = compared_scores(lines, references, baseline, settings, test)
        rows.append(HeadScores(head, NONE if head is None else names[head], {each.metric: each for each in scores}))
    return rows


def report(found: Mapping[str, Sequence[HeadScores]], site: SiteName, test: PairedTest = BOOTSTRAP) -> Report:
    """Make the table: one row for each metric and head."""
    rows = []
    for model, own in found.items():
        for metric in own[0].scores:
            for row in own:
                label = "-" if row.head is None else str(row.head)
                place = (model, SITE_NAMES[site], METRICS[metric].label, label, row.name)
                rows.append((*place, *row.scores[metric].cells))
    heads = (*columns("text model site metric disabled what_it_does"), *SCORE_COLUMNS)
    title = "quality with one head disabled in all layers"
    scores = [score for own in found.values() for row in own for score in row.scores.values()]
    notes = (
        f"difference: from all heads, with its 95% interval and p-value: {test_note(scores, test)}",
        *signature_notes(scores),
    )
    return Report("ablate-heads", (Table("ablate-heads", title, heads, rows),), notes)


def panels(found: Mapping[str, Sequence[HeadScores]], site: SiteName) -> list[Panel]:
    """Draw one diagram for each metric: the difference that each head makes, one colour for each model."""
    result = []
    heads = sorted({row.head: row.name for rows in found.values() for row in rows if row.head is not None}.items())
    places = {head: float(i) for i, (head, _) in enumerate(heads)}
    ticks = [(places[head], f"{head}\n{name}") for head, name in heads]
    for metric in next(iter(found.values()))[0].scores:
        series, intervals = {}, {}
        for model, rows in found.items():
            points = [(row.head, row.scores[metric].comparison) for row in rows]
            compared = [(places[head], one.difference) for head, one in points if head is not None and one]
            series[model] = [(place, one.value) for place, one in compared]
            intervals[model] = [one.interval for _, one in compared]
        label = f"{METRICS[metric].label}, difference from all heads"
        named = f"disabled head of {site_title(site)}"
        result.append(Panel(named, label, series, style="bars", ticks=ticks, intervals=intervals))
    return result
