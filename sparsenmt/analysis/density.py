"""Density of attention: the share of visible keys that get any weight (Correia, Niculae and Martins 2019, 5.1).

A query's density is the number of keys with a weight that is not 0 over the number of keys that it may see; that of a
head on a sentence is the mean over the sentence's queries (Fig. 4), that of a head the mean over sentences (Fig. 5).
Queries that may see nothing do not count. Visible is what causality, padding and the pattern leave: a window's softmax
has density 1, and its savings are in the number of attended positions.
Shapes: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.analysis.observe import SITE_NAMES, Attended, Head, head_name
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value

BINS = 20
"""Of the histogram over [0, 1]; the last one holds 1."""
_EVEN = 1e-9  # a mean of shares that is the edge of a bin but for rounding lies above it


def sentence_densities(seen: Attended) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of every head on every sentence: density, attended positions, visible positions, queries that see something.

    Returns:
        four of (B, H), float64; the second and third are sums over queries; the density is 0 without such a query.
    """
    visible = seen.head_visible.sum(-1)  # (B, H, Q)
    seeing = seen.real[:, None] & (visible > 0)
    attended = (seen.weights != 0).sum(-1) * seeing
    visible = visible * seeing
    queries = seeing.sum(-1).double()
    shares = (attended / visible.clamp_min(1)).double().sum(-1)
    return shares / queries.clamp_min(1), attended.sum(-1).double(), visible.sum(-1).double(), queries


class DensityCounter:
    """An observer (`observe.observe`) that adds up densities; of every layer a few numbers a head are kept."""

    def __init__(self) -> None:
        self._sums: dict[tuple[SiteName, int], Tensor] = {}  # (5, H): density, attended, visible, queries, sentences
        self._histograms: dict[tuple[SiteName, int], Tensor] = {}  # (H, BINS)

    def __call__(self, seen: Attended) -> None:
        key = seen.site, seen.layer
        density, attended, visible, queries = sentence_densities(seen)
        counted = queries > 0
        added = torch.stack([each.sum(0) for each in (density * counted, attended, visible, queries, counted.double())])
        bins = (density * BINS + _EVEN).long().clamp_max(BINS - 1)  # (B, H)
        heads = torch.arange(density.shape[1], device=density.device).expand_as(bins)
        places = (heads * BINS + bins)[counted]
        histogram = torch.bincount(places, minlength=density.shape[1] * BINS).view(-1, BINS).cpu()
        self._sums[key] = added.cpu() if key not in self._sums else self._sums[key] + added.cpu()
        self._histograms[key] = histogram if key not in self._histograms else self._histograms[key] + histogram

    def found(self, model: str, alphas: Mapping[Head, float] | None = None) -> DensityResult:
        """What was gathered.

        Args:
            alphas: of the heads that have learned one.
        """
        heads: dict[Head, HeadDensity] = {}
        for (site, layer), sums in self._sums.items():
            rows = zip(sums.T.tolist(), self._histograms[site, layer].tolist(), strict=True)
            for number, ((density, attended, visible, queries, sentences), histogram) in enumerate(rows, start=1):
                measured = sentences > 0
                heads[site, layer, number] = HeadDensity(
                    density=density / sentences if measured else None,
                    attended=attended / queries if measured else None,
                    visible=visible / queries if measured else None,
                    sentences=int(sentences),
                    queries=int(queries),
                    histogram=histogram,
                    alpha=(alphas or {}).get((site, layer, number)),
                )
        return DensityResult(model, heads)


@dataclass(frozen=True)
class HeadDensity:
    """One head; None: no query saw anything."""

    density: float | None
    """Mean over sentences of the mean over queries."""
    attended: float | None
    """Positions with weight, a query."""
    visible: float | None
    """Positions that may be seen, a query."""
    sentences: int
    queries: int
    histogram: list[int]
    """Sentences by density."""
    alpha: float | None = None


@dataclass(frozen=True)
class DensityResult:
    """One model's heads, by site, layer and number."""

    model: str
    heads: dict[Head, HeadDensity]

    def at(self, site: SiteName) -> dict[Head, HeadDensity]:
        """The heads of one site."""
        return {key: each for key, each in self.heads.items() if key[0] == site}

    def site_mean(self, site: SiteName, name: str) -> float | None:
        """Mean of an attribute over the heads of a site, each as often as the others."""
        values = [getattr(each, name) for each in self.at(site).values() if each.density is not None]
        return sum(values) / len(values) if values else None


def report(found: Sequence[DensityResult]) -> Report:
    """The sites; heads sorted by density within a layer; the histograms."""
    sites: list[tuple[Value, ...]] = []
    heads: list[tuple[Value, ...]] = []
    bins: list[tuple[Value, ...]] = []
    for each in found:
        for site in SITES:
            own = each.at(site)
            if not own:
                continue
            name = SITE_NAMES[site]
            means = (each.site_mean(site, "density"), each.site_mean(site, "attended"), each.site_mean(site, "visible"))
            sites.append((each.model, name, *means, len(own), max(one.sentences for one in own.values())))
            ordered = sorted(own.items(), key=lambda item: (item[0][1], item[1].density or 0.0))
            for (_, layer, number), one in ordered:
                measures = (one.density, one.attended, one.visible, one.alpha)
                heads.append((each.model, name, head_name(layer, number), layer, number, *measures))
            total = [sum(counts) for counts in zip(*(one.histogram for one in own.values()), strict=True)]
            for i, count in enumerate(total):
                share = count / sum(total) if sum(total) else None
                bins.append((each.model, name, f"{i / BINS:.2f} to {(i + 1) / BINS:.2f}", i / BINS, count, share))
    return Report("density", _tables(sites, heads, bins))


def _tables(
    sites: list[tuple[Value, ...]], heads: list[tuple[Value, ...]], bins: list[tuple[Value, ...]]
) -> tuple[Table, Table, Table]:
    measures = (Column("density", "share"), Column("attended", "number"), Column("visible", "number"))
    start = (Column("model"), Column("site"))
    summary = (*start, *measures, Column("heads", "count"), Column("sentences", "count"))
    single = (*start, Column("head"), Column("layer", "count", False), Column("number", "count", False))
    shapes = (*start, Column("density"), Column("from", "number", False))
    return (
        Table("sites", "share of visible positions with weight, and positions a query", summary, tuple(sites)),
        Table(
            "heads",
            "density of every head (layer.head), from the sparsest of its layer",
            (*single, *measures, Column("alpha", "number", any(row[-1] is not None for row in heads))),
            tuple(heads),
            across="model",
            shown="density",
        ),
        Table(
            "histogram",
            "heads on sentences by density",
            (*shapes, Column("count", "count"), Column("share", "share")),
            tuple(bins),
            across="model",
            shown="share",
            listed=False,
        ),
    )


def panels(found: Sequence[DensityResult]) -> list[list[Panel]]:
    """A column a site: the histograms of all models (Fig. 4), and below, a line a model, its sorted heads (Fig. 5)."""
    sites = [site for site in SITES if any(each.at(site) for each in found)]
    return [
        [_histogram_panel(found, site) for site in sites],
        *([_layer_panel(each, site) for site in sites] for each in found),
    ]


def _histogram_panel(found: Sequence[DensityResult], site: SiteName) -> Panel:
    series = {}
    for each in found:
        total = [sum(counts) for counts in zip(*(one.histogram for one in each.at(site).values()), strict=True)]
        shares = [count / max(sum(total), 1) for count in total]
        points: list[tuple[float, float | None]] = [(i / BINS, share) for i, share in enumerate(shares)]
        series[each.model] = [*points, (1.0, 0.0)]
    label = "share of heads on sentences"
    title = f"{SITE_NAMES[site]}-attention"
    return Panel("density", label, series, title=title, percent="xy", style="steps", x_range=(0.0, 1.0))


def _layer_panel(found: DensityResult, site: SiteName) -> Panel:
    """A line for the sparsest head of every layer, one for the next, and so on."""
    layers: dict[int, list[float]] = {}
    for (_, layer, _), one in found.at(site).items():
        layers.setdefault(layer, []).append(one.density or 0.0)
    ordered = {layer: sorted(values) for layer, values in sorted(layers.items())}
    points: list[tuple[float, float | None]] = []
    for rank in range(max(map(len, ordered.values()), default=0)):
        points += [(float(layer), values[rank]) for layer, values in ordered.items() if rank < len(values)]
        points.append((float("nan"), None))
    ticks = [(float(layer), str(layer)) for layer in ordered]
    title = f"{found.model}, {SITE_NAMES[site]}-attention"
    return Panel(
        "layer", "density of a head", {found.model: points}, title=title, percent="y", y_range=(0.0, 1.05), ticks=ticks
    )
