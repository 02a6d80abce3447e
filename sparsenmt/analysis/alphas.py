"""Learned alphas: of every head, their distribution a site, and their course over training (Correia, Niculae and
Martins 2019, 5.1, Fig. 2 and 3).

A transform that learns alphas says what they are by a property ``alphas``, (H,) of the learned heads, or None. Those of
a checkpoint are found by putting its tensors of that transform, and of nothing else, into the transform.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparsenmt.analysis.observe import SITE_NAMES, Head, head_name
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import Transform
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value

LOW, HIGH, BINS = 1.0, 2.0, 20
"""Of the histogram: softmax at one end, sparsemax at the other."""
_STEP = re.compile(r"(encoder|decoder)\.steps\.(\d+)\.(self|cross)\.transform")


def learned_alphas(model: TranslationModel) -> dict[Head, float]:
    """The alpha of every head that learns one, by site, layer and number; heads whose weights are given come before."""
    found: dict[Head, float] = {}
    for _, (site, layer), transform in _transforms(model):
        alphas: Tensor | None = getattr(transform, "alphas", None)
        if alphas is None:
            continue
        given = len(model.head_names(site)) - len(alphas)
        for i, alpha in enumerate(alphas.detach().double().tolist(), start=1):
            found[site, layer, given + i] = alpha
    return found


def _transforms(model: TranslationModel) -> Iterator[tuple[str, tuple[SiteName, int], Transform]]:
    """Name, place and module of every transform that may learn something."""
    assert isinstance(model, nn.Module)
    for name, module in model.named_modules(remove_duplicate=False):
        place = _STEP.fullmatch(name)
        if place is not None and isinstance(module, Transform):
            site: SiteName = "cross" if place[3] == "cross" else f"{place[1]}_self"  # type: ignore[assignment]
            yield name, (site, int(place[2]) + 1), module


def alphas_at(model: TranslationModel, weights: Mapping[str, Tensor], where: str) -> dict[Head, float]:
    """The alphas that a model would have with other weights; its own stay as they are.

    Args:
        weights: a checkpoint's, by name; what does not belong to transforms is not looked at.
        where: what messages call them.

    Raises:
        UserError: a transform's are missing, or have another shape.
    """
    with _loaned(model, weights, where):
        return learned_alphas(model)


@contextmanager
def _loaned(model: TranslationModel, weights: Mapping[str, Tensor], where: str) -> Iterator[None]:
    changed: dict[int, tuple[Tensor, Tensor]] = {}  # transforms may share a tensor
    try:
        for name, _, transform in _transforms(model):
            for key, tensor in transform.state_dict(keep_vars=True).items():
                new = weights.get(f"{name}.{key}")
                if new is None or new.shape != tensor.shape:
                    raise UserError(f"{name}.{key} is missing, or has another shape", where=where, hint=_OTHER)
                changed.setdefault(id(tensor), (tensor, tensor.detach().clone()))
                with torch.no_grad():
                    tensor.copy_(new)
        yield
    finally:
        with torch.no_grad():
            for tensor, before in changed.values():
                tensor.copy_(before)


_OTHER = "The weights must be those of a model with the recipe that lies beside them."


@dataclass(frozen=True)
class AlphaResult:
    """One model's alphas; ``course``: update -> those of the checkpoint, rising."""

    model: str
    alphas: dict[Head, float]
    course: dict[int, dict[Head, float]]


def histogram(values: Sequence[float]) -> list[int]:
    """Heads by alpha, in bins of equal width; what lies outside counts in the first or the last."""
    counts = [0] * BINS
    for value in values:
        counts[min(max(int((value - LOW) / (HIGH - LOW) * BINS + 1e-9), 0), BINS - 1)] += 1
    return counts


def report(found: Sequence[AlphaResult]) -> Report:
    """A row a site; a row a head; the histograms; and a row a checkpoint and head."""
    sites: list[tuple[Value, ...]] = []
    heads: list[tuple[Value, ...]] = []
    bins: list[tuple[Value, ...]] = []
    course: list[tuple[Value, ...]] = []
    for each in found:
        for site in SITES:
            own = {key: alpha for key, alpha in sorted(each.alphas.items()) if key[0] == site}
            if not own:
                continue
            name, values = SITE_NAMES[site], list(own.values())
            sites.append((each.model, name, len(own), sum(values) / len(own), min(values), max(values)))
            for (_, layer, number), alpha in own.items():
                heads.append((each.model, name, head_name(layer, number), layer, number, alpha))
            for i, count in enumerate(histogram(values)):
                low, high = LOW + i * (HIGH - LOW) / BINS, LOW + (i + 1) * (HIGH - LOW) / BINS
                bins.append((each.model, name, f"{low:.2f} to {high:.2f}", low, count))
        for update, alphas in each.course.items():
            for (site, layer, number), alpha in sorted(alphas.items(), key=_order):
                course.append((each.model, update, SITE_NAMES[site], head_name(layer, number), layer, number, alpha))
    notes = [
        f"{each.model}: checkpoints of {len(each.course)} updates, {min(each.course):,} to {max(each.course):,}"
        if each.course
        else f"{each.model}: no checkpoint is there, the course is not measured"
        for each in found
    ]
    return Report("alphas", _tables(sites, heads, bins, course), tuple(notes))


def _order(item: tuple[Head, float]) -> tuple[int, int, int]:
    """By site, layer and number."""
    (site, layer, number), _ = item
    return SITES.index(site), layer, number


def _tables(
    sites: list[tuple[Value, ...]],
    heads: list[tuple[Value, ...]],
    bins: list[tuple[Value, ...]],
    course: list[tuple[Value, ...]],
) -> tuple[Table, ...]:
    start, number = (Column("model"), Column("site")), Column("alpha", "number")
    head = (Column("head"), Column("layer", "count", False), Column("number", "count", False))
    summary = (Column("heads", "count"), Column("mean", "number"), Column("least", "number"), Column("most", "number"))
    shapes = (Column("alpha"), Column("from", "number", False), Column("heads", "count"))
    return (
        Table("sites", "learned alphas by site", (*start, *summary), tuple(sites)),
        Table(
            "heads",
            "learned alpha of every head (layer.head)",
            (*start, *head, number),
            tuple(heads),
            across="model",
            shown="alpha",
        ),
        Table("histogram", "heads by alpha", (*start, *shapes), tuple(bins), listed=False),
        Table(
            "course",
            "learned alphas by update",
            (Column("model"), Column("update", "count"), Column("site"), *head, number),
            tuple(course),
            listed=False,
        ),
    )


def panels(found: Sequence[AlphaResult]) -> list[list[Panel]]:
    """A column a site: the histograms (Fig. 3), and below, a line a model, the course of every head (Fig. 2)."""
    sites = [site for site in SITES if any(key[0] == site for each in found for key in each.alphas)]
    lines = [[_histogram_panel(found, site) for site in sites]]
    lines += [[_course_panel(each, site) for site in sites] for each in found if len(each.course) > 1]
    return lines


def _histogram_panel(found: Sequence[AlphaResult], site: SiteName) -> Panel:
    series: dict[str, list[tuple[float, float | None]]] = {}
    for each in found:
        counts = histogram([alpha for key, alpha in each.alphas.items() if key[0] == site])
        places = [LOW + i * (HIGH - LOW) / BINS for i in range(BINS)]
        series[each.model] = [*zip(places, map(float, counts), strict=True), (HIGH, 0.0)]
    title = f"{SITE_NAMES[site]}-attention"
    return Panel("alpha", "heads", series, title=title, style="steps", x_range=(LOW, HIGH))


def _course_panel(found: AlphaResult, site: SiteName) -> Panel:
    """A colour a layer, a line a head."""
    heads = sorted({key for alphas in found.course.values() for key in alphas if key[0] == site})
    series: dict[str, list[tuple[float, float | None]]] = {}
    for head in heads:
        points: list[tuple[float, float | None]] = [(u, alphas.get(head)) for u, alphas in found.course.items()]
        series.setdefault(f"layer {head[1]}", []).extend([*points, (float("nan"), None)])
    title = f"{found.model}, {SITE_NAMES[site]}-attention"
    return Panel("update", "alpha", series, title=title, style="lines", y_range=(LOW, HIGH))
