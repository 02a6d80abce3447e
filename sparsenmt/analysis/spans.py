"""The spans that heads have learned, and the quality that they were reached at.

Sukhbaatar, Grave, Bojanowski and Joulin 2019, "Adaptive Attention Span in Transformers"; Zhao et al., "Extremely Sparse
Transformer with Top-k Selective Attention", Table 4.

A span method gives the span of every head to the training log (`Span.logged`), at validations too, so that the course
over training and the quality of each validation can be put side by side. In logs of older versions validations have no
spans: theirs are those of the last line before.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.analysis.labels import HEAD_COLUMNS, SITE_NAMES, Head, by_head, head_cells, number_ticks
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_directory import WEIGHTS, read_recipe
from sparsenmt.errors import UserError
from sparsenmt.metric import lower_is_better, metric_label
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.report.plots import Panel, describe, panel_grid
from sparsenmt.report.tables import Report, Table, Value, columns
from sparsenmt.training.training_log import logged_values

_STEP, _MOST = 0.1, 8
"""Distance between the levels of quality that are chosen, and their largest number."""


@dataclass(frozen=True)
class SpanPoint:
    """A validation: its quality by the metric, and the mean span of all heads then, in positions."""

    update: int
    quality: float
    span: float


@dataclass(frozen=True)
class SpanResult:
    """The spans of one model.

    Args:
        metric: that it was validated by.
        spans: of every head, at the end, in positions.
        course: updates, rising, and the mean span of all heads then.
        points: the validations, by update.
        unfinished: update of the spans in a run without final weights; None: it has them.
    """

    model: str
    metric: str
    spans: dict[Head, float]
    course: list[tuple[int, float]]
    points: list[SpanPoint]
    unfinished: int | None = None

    def notes(self, levels: Sequence[float]) -> list[str]:
        """Return notes on what is missing in the tables; ``levels``: the qualities that they ask for."""
        found, updates = [], {update for update, _ in self.course}
        if self.unfinished is not None:
            found.append(f"{self.model}: without final weights, spans of update {self.unfinished:,}")
        if not self.points:
            return [*found, f"{self.model}: the log has no spans at validations"]
        if any(point.update not in updates for point in self.points):
            found.append(f"{self.model}: an older log, with spans of the last line before a validation")
        missed = [f"{level:g}" for level in levels if first_reaching(self.points, level, self.metric) is None]
        if missed:
            best = (min if lower_is_better(self.metric) else max)(point.quality for point in self.points)
            label = _label(self.metric)
            found.append(f"{self.model}: not reached: {', '.join(missed)}; the best {label} is {best:.3f}")
        return found


def measure_spans(session: AnalysisSession, *, levels: Sequence[float] = ()) -> AnalysisResult:
    """Make the report ``spans``; it reads no text.

    Args:
        levels: qualities in validation, such as 1.4 bits per character, at which the mean span is told; empty: chosen
            by what the models reached.

    Raises:
        UserError: no model has learned spans, or the models were validated by different metrics.
    """
    hint = "Name a model with `span: {name: adaptive_span}` at a site of self-attention."
    found, notes = session.learned("span", _measure, hint)
    metric = found[0].metric
    for other in found:
        if other.metric != metric:
            raise UserError(
                f"{found[0].model} was validated by {metric}, and {other.model} by {other.metric}",
                where=str(session.labels[other.model]),
                hint="Name models with the same `training.validation.metric`.",
            )
    chosen = list(levels) or _levels(found, metric)
    made = report(found, metric, chosen, notes)
    title = session.plot_title(made)
    return AnalysisResult(made, lambda: describe(panel_grid(panels(found, metric)), title))


def _measure(label: str, directory: Path) -> SpanResult | None:
    """Return the spans of one model; None if it learns none."""
    metric, logged, unfinished = read_recipe(directory).training.validation.metric, _logged(directory), None
    if logged and not (directory / WEIGHTS).exists():
        model = build_model(read_recipe(directory).model, source_size=8, target_size=8, seed=1)
        unfinished = max(logged)
        found = logged[unfinished]
    else:
        model = open_model(directory, any_task=True).model
        found = model.logged().get("span", {})
    if not found:
        return None
    course = [(update, _mean(each)) for update, each in sorted(logged.items())]
    updates, points = [update for update, _ in course], []
    for update, quality in logged_values(directory, "validation", "update", metric):
        before = bisect_right(updates, update) - 1
        if before >= 0 and isinstance(quality, int | float) and math.isfinite(quality):  # null: it was not finite
            points.append(SpanPoint(update, quality, course[before][1]))
    return SpanResult(label, metric, by_head(model, found), course, points, unfinished)


Spans = Mapping[SiteName, Sequence[Sequence[float]]]
"""Site -> for each layer the spans of its learned heads."""


def _logged(directory: Path) -> dict[int, Spans]:
    """Return update -> spans of a training log; entries that hold none, or broken ones, are left out."""
    found: dict[int, Spans] = {}
    for kind in ("train", "validation"):
        for update, heads in logged_values(directory, kind, "update", "heads"):
            try:
                if math.isfinite(_mean(heads["span"])) and heads["span"].keys() <= set(SITES):
                    found[int(update)] = heads["span"]
            except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
                continue
    return found


def _mean(spans: Spans) -> float:
    """Return the mean span of all heads, in positions."""
    values = [value for layers in spans.values() for layer in layers for value in layer]
    return sum(values) / len(values)


def _levels(found: Sequence[SpanResult], metric: str) -> list[float]:
    """Return the best round qualities between the worst and the best validation, `_MOST` at most, the best one last."""
    values = [point.quality for each in found for point in each.points]
    if not values:
        return []
    step = _STEP if lower_is_better(metric) and max(values) < 20 else 1.0
    first, last = math.floor(min(values) / step) + 1, math.ceil(max(values) / step) - 1
    levels = [round(number * step, 6) for number in range(first, last + 1)]
    return levels[:_MOST][::-1] if lower_is_better(metric) else levels[-_MOST:]


def first_reaching(points: Sequence[SpanPoint], level: float, metric: str) -> SpanPoint | None:
    """Return the first validation at a level of quality or better; None if there is none."""
    sign = 1 if lower_is_better(metric) else -1
    return next((point for point in points if sign * point.quality <= sign * level), None)


def report(found: Sequence[SpanResult], metric: str, levels: Sequence[float], notes: Sequence[str] = ()) -> Report:
    """Make four tables: layers; heads; the mean span when a quality was first reached; the course.

    Args:
        levels: the qualities, the best one last.
        notes: further ones.
    """
    heads: list[tuple[Value, ...]] = [
        (each.model, SITE_NAMES[site], *head_cells(layer, number), value)
        for each in found
        for (site, layer, number), value in sorted(each.spans.items())
    ]
    course: list[tuple[Value, ...]] = [
        (each.model, point.update, point.span, point.quality) for each in found for point in each.points
    ]
    head_columns = (*columns("text model site"), *HEAD_COLUMNS, *columns("number span"))
    layer_columns = columns("text model site layer", "number mean longest")
    level_columns = columns("text level model", "number span quality", "count update")
    course_columns = columns("text model", "count update", "number span quality")
    layers = [row for each in found for row in _layers(each)]
    reached = [_reached(each, level, metric) for level in levels for each in found]
    when = f"mean span when {_label(metric)} in validation first reached a level"
    tables = (
        Table("layers", "learned spans by layer, in positions", layer_columns, layers),
        Table("heads", "learned span of every head (layer.head)", head_columns, heads, across="model", shown="span"),
        Table("levels", when, level_columns, reached, across="model", shown="span"),
        Table("course", "mean span by validation", course_columns, course, listed=False),
    )
    own = [note for each in found for note in each.notes(levels)]
    settings = {"models": [each.model for each in found], "metric": metric}
    return Report("spans", tables, (*own, *notes), settings)


def _layers(found: SpanResult) -> Iterator[tuple[Value, ...]]:
    """Yield rows of the mean and longest span of every layer of a site, and of all layers if there are several."""
    for site in SITES:
        own = {(layer, number): value for (place, layer, number), value in found.spans.items() if place == site}
        layers = sorted({layer for layer, _ in own})
        groups = [(str(layer), [value for key, value in own.items() if key[0] == layer]) for layer in layers]
        groups += [("all", list(own.values()))] if len(groups) > 1 else []
        for name, values in groups:
            yield (found.model, SITE_NAMES[site], name, sum(values) / len(values), max(values))


def _reached(found: SpanResult, level: float, metric: str) -> tuple[Value, ...]:
    """Return the row of the first validation at a level of quality, without values if there is none."""
    point = first_reaching(found.points, level, metric)
    return (f"{level:g}", found.model, *((None,) * 3 if point is None else (point.span, point.quality, point.update)))


def _label(metric: str) -> str:
    """Return the name of a metric of validation, which may be the loss."""
    return metric if metric == "loss" else metric_label(metric)


def panels(found: Sequence[SpanResult], metric: str) -> list[list[Panel]]:
    """Draw the spans of the heads by layer; the mean span against quality; the mean span over training."""
    heads = {
        each.model: [(float(layer), value) for (_, layer, _), value in sorted(each.spans.items())] for each in found
    }
    curve = {each.model: [(point.span, point.quality) for point in each.points] for each in found if each.points}
    course = {each.model: [(float(update), span) for update, span in each.course] for each in found if each.course}
    ticks = number_ticks(sorted({layer for each in found for _, layer, _ in each.spans}))
    line = [Panel("layer", "span of each head (positions)", heads, style="points", title="at the end", ticks=ticks)]
    mean, quality = "mean span (positions)", f"{_label(metric)} in validation"
    if curve:
        line.append(Panel(mean, quality, curve, style="curves", title="span and quality"))
    if course:
        line.append(Panel("update", mean, course, style="lines", title="over training"))
    return [line]
