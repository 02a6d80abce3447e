"""The entmax alphas that heads have learned: their distribution by site, and their course over training (Correia,
Niculae and Martins 2019, 5.1, Fig. 2 and 3).

A transform that learns alphas gives them to the training log (`Transform.logged`): the course is that of the log, or,
for a log of an older version, that of the checkpoints which are left. The alphas of a checkpoint are read by copying
its tensors of the transform, and no others, into the transform for a moment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sparsenmt.analysis.labels import HEAD_COLUMNS, SITE_NAMES, Head, by_head, head_cells, head_name, site_title
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_directory import WEIGHTS, read_recipe
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.process.progress import progress_bar
from sparsenmt.report.plots import Panel, describe, panel_grid
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.storage.tensors import load_tensors
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.merge import merge_adapters
from sparsenmt.training.training_log import logged_values

LOW, HIGH, BINS = 1.0, 2.0, 20
"""The histogram's range, softmax at one end and sparsemax at the other, and its number of bins."""
_HINT_DAMAGED = "Take the model directory from a copy, or train it again."
_HINT_OTHER = "The weights must be those of a model with the recipe that lies beside them."
_STEP = re.compile(r"(encoder|decoder)\.steps\.\d+\.(self|cross)\.transform")


def measure_alphas(session: AnalysisSession, *, heads: Sequence[Head] = ()) -> AnalysisResult:
    """Make the report ``alphas``; it reads no text.

    Args:
        heads: the heads whose course is drawn, by name; empty: all, with the histograms.

    Raises:
        UserError: no model learns an alpha, or a model has no such head.
    """
    hint = "Name a model with `transform: {name: entmax, alpha: learned}` at one of its attention sites."
    found, notes = session.learned("alpha", _measure, hint)
    for each in found:
        if missing := [head for head in heads if head not in each.alphas]:
            site, layer, number = missing[0]
            raise UserError(
                f"{each.model} learns no alpha for head {head_name(layer, number)} of {site}",
                where="--head",
                hint="Name a head of the report's table: layer and number of the head, fixed heads counted first.",
            )
    made = report(found)
    whole = replace(made, notes=(*made.notes, *notes), settings={"models": list(session.labels)})
    title = session.plot_title(whole)
    return AnalysisResult(whole, lambda: describe(panel_grid(panels(found, heads)), title))


def _measure(label: str, directory: Path) -> AlphaResult | None:
    """Return the alphas of one model; None if it learns none."""
    model = build_model(read_recipe(directory).model, source_size=8, target_size=8, seed=1)  # embeddings do not matter
    if not learned_alphas(model):
        return None
    course, checkpoints, source = logged_course(model, directory), find_checkpoints(directory), "log"
    if not course:
        source = "checkpoints"
        with progress_bar(f"{label}: checkpoints", len(checkpoints)) as advance:
            for each in checkpoints:
                course[each.update] = alphas_at(model, merge_adapters(each.weights()), str(each.path))
                advance(1)
    path = directory / WEIGHTS
    if not path.exists() and course:
        return AlphaResult(label, course[max(course)], course, source)
    final = alphas_at(model, load_tensors(path, hint=_HINT_DAMAGED), str(path))
    return AlphaResult(label, final, course, source)


def learned_alphas(model: TranslationModel) -> dict[Head, float]:
    """Return the alpha of every head that learns one. Fixed heads come before learned ones."""
    return by_head(model, model.logged().get("alpha", {}))


def logged_course(model: TranslationModel, directory: Path) -> dict[int, dict[Head, float]]:
    """Return update -> alphas of a training log; empty where it holds none. Lines of another model are left out."""
    course, known = {}, learned_alphas(model).keys()
    for update, values in logged_values(directory, "train", "update", "heads"):
        try:
            alphas = by_head(model, values["alpha"])
            if alphas.keys() == known and all(map(math.isfinite, alphas.values())):
                course[int(update)] = alphas
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return course


def alphas_at(model: TranslationModel, weights: Mapping[str, Tensor], where: str) -> dict[Head, float]:
    """Return the alphas that a model would have with other weights; its own weights stay as they are.

    Args:
        weights: name -> tensor of a checkpoint; only those of transforms are used.
        where: their name in messages.

    Raises:
        UserError: a transform's weights are missing, or have another shape.
    """
    assert isinstance(model, nn.Module)
    transforms = [(name, each) for name, each in model.named_modules(remove_duplicate=False) if _STEP.fullmatch(name)]
    changed: dict[int, tuple[Tensor, Tensor]] = {}  # transforms may share a tensor
    try:
        for name, transform in transforms:
            for key, tensor in transform.state_dict(keep_vars=True).items():
                new = weights.get(f"{name}.{key}")
                if new is None or new.shape != tensor.shape:
                    raise UserError(f"{name}.{key} is missing, or has another shape", where=where, hint=_HINT_OTHER)
                changed.setdefault(id(tensor), (tensor, tensor.detach().clone()))
                with torch.no_grad():
                    tensor.copy_(new)
        return learned_alphas(model)
    finally:
        with torch.no_grad():
            for tensor, before in changed.values():
                tensor.copy_(before)


@dataclass(frozen=True)
class AlphaResult:
    """The alphas of one model.

    Args:
        course: update -> alphas, rising.
        source: what the course was read from, the training ``log`` or ``checkpoints``.
    """

    model: str
    alphas: dict[Head, float]
    course: dict[int, dict[Head, float]]
    source: str = "checkpoints"


def histogram(values: Sequence[float]) -> list[int]:
    """Count heads by alpha, in bins of equal width; values out of range count in the first or the last bin."""
    counts = [0] * BINS
    for value in values:
        counts[min(max(int((value - LOW) / (HIGH - LOW) * BINS + 1e-9), 0), BINS - 1)] += 1
    return counts


def report(found: Sequence[AlphaResult]) -> Report:
    """Make four tables: sites; heads; histograms; every head at every update of the course."""
    sites, heads, bins, course = [], [], [], []
    for each in found:
        for site in SITES:
            own = {key: alpha for key, alpha in sorted(each.alphas.items()) if key[0] == site}
            if not own:
                continue
            name, values = SITE_NAMES[site], list(own.values())
            sites.append((each.model, name, len(own), sum(values) / len(own), min(values), max(values)))
            for (_, layer, number), alpha in own.items():
                heads.append((each.model, name, *head_cells(layer, number), alpha))
            for i, count in enumerate(histogram(values)):
                low, high = LOW + i * (HIGH - LOW) / BINS, LOW + (i + 1) * (HIGH - LOW) / BINS
                bins.append((each.model, name, f"{low:.2f} to {high:.2f}", low, count))
        for update, alphas in each.course.items():
            for head in sorted(alphas, key=lambda head: (SITES.index(head[0]), head)):
                site, layer, number = head
                course.append((each.model, update, SITE_NAMES[site], *head_cells(layer, number), alphas[head]))
    notes = [
        f"{each.model}: {each.source} of {len(each.course)} updates, {min(each.course):,} to {max(each.course):,}"
        if each.course
        else f"{each.model}: the log has no alphas and there is no checkpoint, the course is not measured"
        for each in found
    ]
    summary = columns("text model site", "count heads", "number mean least most")
    head_columns = (*columns("text model site"), *HEAD_COLUMNS, *columns("number alpha"))
    course_columns = (*columns("text model", "count update", "text site"), *HEAD_COLUMNS)
    bin_columns = columns("text model site alpha", "hidden number from", "count heads")
    tables = (
        Table("sites", "learned alphas by site", summary, sites),
        Table("heads", "learned alpha of every head (layer.head)", head_columns, heads, across="model", shown="alpha"),
        Table("histogram", "heads by alpha", bin_columns, bins, listed=False),
        Table("course", "learned alphas by update", (*course_columns, *columns("number alpha")), course, listed=False),
    )
    return Report("alphas", tables, tuple(notes))


def panels(found: Sequence[AlphaResult], heads: Sequence[Head] = ()) -> list[list[Panel]]:
    """Draw one column for each site: the histograms (Fig. 3); below, each model's course of every head.

    Args:
        heads: if there are any, draw the course of these alone, one panel for each model (Fig. 2).
    """
    if heads:
        return [[_chosen_panel(each, heads) for each in found]]
    sites = [site for site in SITES if any(key[0] == site for each in found for key in each.alphas)]
    lines = [[_histogram_panel(found, site) for site in sites]]
    lines += [[_course_panel(each, site) for site in sites] for each in found if len(each.course) > 1]
    return lines


def _histogram_panel(found: Sequence[AlphaResult], site: SiteName) -> Panel:
    """Draw the number of heads in each bin of alpha, one outline for each model."""
    series = {}
    for each in found:
        counts = histogram([alpha for key, alpha in each.alphas.items() if key[0] == site])
        places = [LOW + i * (HIGH - LOW) / BINS for i in range(BINS)]
        series[each.model] = [*zip(places, map(float, counts), strict=True), (HIGH, 0.0)]
    x, title = "alpha (1: softmax, 2: sparsemax)", site_title(site)
    return Panel(x, "number of heads", series, title=title, style="steps", x_range=(LOW, HIGH))


def _course_panel(found: AlphaResult, site: SiteName) -> Panel:
    """Draw alpha against the update: one curve for each head of a site, one colour for each layer."""
    heads = sorted({key for alphas in found.course.values() for key in alphas if key[0] == site})
    series: dict[str, list[tuple[float, float | None]]] = {}
    for head in heads:
        points = [(float(update), alphas.get(head)) for update, alphas in found.course.items()]
        series.setdefault(f"layer {head[1]}", []).extend([*points, (float("nan"), None)])
    title = site_title(site, found.model)
    return Panel("update", "alpha", series, title=title, style="lines", y_range=(LOW, HIGH))


def _chosen_panel(found: AlphaResult, heads: Sequence[Head]) -> Panel:
    """Draw alpha against the update: one curve for each of the chosen heads."""
    series = {
        f"{SITE_NAMES[head[0]]}, layer {head[1]}, head {head[2]}": [
            (float(update), alphas[head]) for update, alphas in found.course.items()
        ]
        for head in heads
    }
    return Panel("update", "alpha", series, title=found.model, style="lines", y_range=(LOW, HIGH))
