"""The tables and diagrams of `sparsenmt compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparsenmt.evaluation.names import LABELS
from sparsenmt.report.tables import Column, Report, Table, Value

if TYPE_CHECKING:
    from sparsenmt.report.plots import Panel
    from sparsenmt.workflows.evaluate import Evaluation, TestText
    from sparsenmt.workflows.timing import DecodingSpeed


@dataclass(frozen=True)
class Row:
    """One model."""

    label: str
    directory: Path
    found: Evaluation
    speed: DecodingSpeed | None

    def against(self, baseline: Row, metric: str, text: TestText) -> dict[str, float]:
        """The difference to the baseline; nothing for the baseline itself."""
        from sparsenmt.store import read_recipe

        if self.label == baseline.label:
            return {}
        language = read_recipe(self.directory).data.target_language
        return self.found.against(baseline.found, metric, text, language)


def report(rows: Sequence[Row], baseline: str, text: TestText, metrics: Sequence[str], *, attention: bool) -> Report:
    """The models; the tests against the baseline, a metric each; the attention of each site.

    Args:
        baseline: label of the model that the others are tested against.
        metrics: the most important first.
        attention: whether attended positions are shown.
    """
    base = next(row for row in rows if row.label == baseline)
    tables = (
        _models(rows, base, text, metrics, attention=attention),
        _significance(rows, base, text, metrics),
        *([_sites(rows)] if attention else []),
    )
    settings = {
        "models": [row.label for row in rows],
        "baseline": baseline,
        "metrics": list(metrics),
        "text": text.name,
    }
    return Report("compare", tables, tuple(_notes(base, metrics)), settings)


def _models(rows: Sequence[Row], base: Row, text: TestText, metrics: Sequence[str], *, attention: bool) -> Table:
    from sparsenmt.workflows.timing import training_speed

    values: list[tuple[Value, ...]] = []
    for row in rows:
        test, own = row.against(base, metrics[0], text), row.found
        scores = tuple(own.scores[metric] for metric in metrics)
        seen = tuple(own.overall(name) if attention else None for name in ("attended", "density"))
        decoding = None if row.speed is None else row.speed.tokens_per_second
        ratio = None if decoding is None or base.speed is None else decoding / base.speed.tokens_per_second
        measured = (own.parameters, own.sparsity, *seen, training_speed(row.directory), decoding, ratio)
        values.append((row.label, *scores, test.get("difference"), test.get("p_value"), *measured))
    filtered, timed = (
        any(given) for given in zip(*((r.found.sparsity is not None, r.speed) for r in rows), strict=True)
    )
    columns = (
        *(Column("model"), *(Column(metric, "score") for metric in metrics)),
        *(Column("difference", "score"), Column("p_value", "number"), Column("parameters", "count")),
        *(Column("sparsity", "share", filtered), Column("attended", "number", attention)),
        *(Column("density", "share", attention), Column("training", "rate")),
        *(Column("decoding", "rate", timed), Column("decoding_ratio", "score", timed)),
    )
    return Table("models", f"{text.name}: {base.found.sentences:,} sentences", columns, tuple(values))


def _significance(rows: Sequence[Row], base: Row, text: TestText, metrics: Sequence[str]) -> Table:
    names = ("difference", "low", "high", "p_value")
    values: tuple[tuple[Value, ...], ...] = tuple(
        (row.label, LABELS[metric], row.found.scores[metric], *(test[name] for name in names))
        for row in rows
        for metric in metrics
        if (test := row.against(base, metric, text))
    )
    columns = (
        *(Column("model"), Column("metric"), Column("score", "score"), Column("difference", "score")),
        *(Column("low", "score"), Column("high", "score"), Column("p_value", "number")),
    )
    return Table("significance", f"against {base.label}, with 95% intervals", columns, values)


def _sites(rows: Sequence[Row]) -> Table:
    from sparsenmt.analysis.labels import SITE_NAMES

    values = tuple(
        (row.label, name, sites[site].attended, sites[site].visible, sites[site].density)
        for row in rows
        if (sites := row.found.attention) is not None
        for site, name in SITE_NAMES.items()
        if site in sites
    )
    columns = (
        *(Column("model"), Column("site"), Column("attended", "number"), Column("visible", "number")),
        Column("density", "share"),
    )
    return Table("attention", "attended positions a query", columns, values, across="site", shown="attended")


def _notes(base: Row, metrics: Sequence[str]) -> Iterator[str]:
    """What the numbers are."""
    yield f"difference: {LABELS[metrics[0]]} less that of {base.label}; p-value: paired bootstrap, 1000 resamples"
    yield from (f"{LABELS[metric]}: {base.found.signatures[metric]}" for metric in metrics)
    yield "training: target tokens/s by the training's own log, which other work on the machine slows down"
    if base.speed is not None:
        yield "decoding: target tokens/s, the models taking turns, fastest turn; ratio: to the baseline"


def panels(found: Report) -> list[Panel]:
    """Quality against speed: of decoding and of training, as far as there is one."""
    from sparsenmt.report.plots import Panel

    metric, text, diagrams = found.settings["metrics"][0], found.settings["text"], []
    for name in ("decoding", "training"):
        series: dict[str, list[tuple[float, float | None]]] = {}
        for record in found.tables[0].records():
            speed, quality = record[name], record[metric]
            if isinstance(speed, float) and isinstance(quality, float):
                series[str(record["model"])] = [(speed, quality)]
        if series:
            diagrams.append(Panel(f"{name}, target tokens/s", f"{LABELS[metric]}, {text}", series))
    return diagrams
