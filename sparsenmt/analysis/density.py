"""Density of attention: the share of visible keys that get any weight (Correia, Niculae and Martins 2019, 5.1).

The density of a query is the number of keys with weight over the number of keys that it may see. A weight counts if it
is at least 2^-126, the smallest normal number of fp32 and bf16, whatever the transform, the device and the number
format: the paper counts weights that are not 0, and of smaller ones some libraries make 0. The density of a head on a
sentence is the mean over the sentence's queries (Fig. 4), that of a head the mean over sentences (Fig. 5). Queries that
may see nothing do not count; where heads see different keys, attended and visible positions of a head are means over
all queries for which some head sees something. Visible keys are those that causality, padding, the pattern and the
span leave: the softmax of a window has density 1 unless scores lie 87 apart, and its savings are in the number of
attended positions. What a filter has dropped from the decoder's memory is visible and not attended, though the zero
vector in its place has a weight (`analyze attention-mass`).
Shapes: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.analysis.alphas import learned_alphas
from sparsenmt.analysis.labels import HEAD_COLUMNS, SITE_NAMES, Head, head_cells, layer_label, number_ticks, site_title
from sparsenmt.analysis.observe import Attended, TensorSums
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.report.plots import Panel, panel_grid
from sparsenmt.report.tables import Column, Report, Table, columns
from sparsenmt.sparsity.simplex.newton import LEAST

BINS = 20
"""Bins of the histogram over [0, 1]; the last one holds 1."""
_MEASURES = ("density", "attended", "visible")
_ROUNDING = 1e-9  # a mean of shares that is the edge of a bin but for rounding lies above it


def measure_density(session: AnalysisSession, *, sites: Sequence[SiteName] = SITES) -> AnalysisResult:
    """Make the report ``density``."""
    found = [
        model.attend(DensityCounter(), sites).result(model.label, learned_alphas(model.bundle.model))
        for model in session.opened(any_task=True)
    ]
    settings = session.attention_settings(sites)
    return session.result(report(found), lambda: panel_grid(panels(found), share_y=True), settings=settings)


def sentence_densities(seen: Attended) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Measure every head of a site and step on every sentence of a batch.

    Returns:
        four tensors (B, H), float64: density, NaN if the head sees nothing; attended and visible positions, summed over
        queries; queries for which some head sees something.
    """
    visible = seen.head_visible.sum(-1)  # (B, H, Q)
    seeing = seen.real[:, None] & (visible > 0)
    weighted = seen.weights >= LEAST
    if seen.kept is not None:
        weighted = weighted & seen.kept[:, None, None]
    attended = weighted.sum(-1) * seeing
    visible = visible * seeing
    queries = seeing.any(1, keepdim=True).sum(-1).double().expand(seeing.shape[:2])
    shares = (attended.double() / visible.clamp_min(1)).sum(-1)  # in fp32, 7 / 20 would be below the bin of 0.35
    return shares / seeing.sum(-1), attended.sum(-1).double(), visible.sum(-1).double(), queries


class DensityCounter:
    """An observer (`observe.observe`) that adds up densities; a few numbers for each head are kept."""

    def __init__(self) -> None:
        # (5, H): density, attended, visible, queries, sentences
        self._sums: TensorSums[tuple[SiteName, int]] = TensorSums()
        self._histograms: TensorSums[tuple[SiteName, int]] = TensorSums()  # (H, BINS)

    def __call__(self, seen: Attended) -> None:
        key = seen.site, seen.layer
        density, attended, visible, queries = sentence_densities(seen)
        counted = density.isfinite()
        density = density.nan_to_num()
        added = torch.stack([each.sum(0) for each in (density, attended, visible, queries, counted.double())])
        bins = (density * BINS + _ROUNDING).long().clamp_max(BINS - 1)  # (B, H)
        heads = torch.arange(density.shape[1], device=density.device).expand_as(bins)
        places = (heads * BINS + bins)[counted]
        histogram = torch.bincount(places, minlength=density.shape[1] * BINS).view(-1, BINS).cpu()
        self._sums.add(key, added.cpu())
        self._histograms.add(key, histogram)

    def result(self, model: str, alphas: Mapping[Head, float] | None = None) -> DensityResult:
        """Return the densities of one model; ``alphas``: those of the heads that learn one."""
        heads: dict[Head, HeadDensity] = {}
        for (site, layer), sums in self._sums.items():
            rows = zip(sums.T.tolist(), self._histograms[site, layer].tolist(), strict=True)
            for number, ((density, attended, visible, queries, sentences), histogram) in enumerate(rows, start=1):
                heads[site, layer, number] = HeadDensity(
                    density=density / sentences if sentences else None,
                    attended=attended / queries if queries else None,
                    visible=visible / queries if queries else None,
                    sentences=int(sentences),
                    queries=int(queries),
                    histogram=histogram,
                    alpha=(alphas or {}).get((site, layer, number)),
                )
        return DensityResult(model, heads)


@dataclass(frozen=True)
class HeadDensity:
    """The density of one head; None: no query saw anything."""

    density: float | None
    """Mean over sentences of the mean over queries."""
    attended: float | None
    """Positions with weight, mean over queries."""
    visible: float | None
    """Positions that may be seen, mean over queries."""
    sentences: int
    queries: int
    histogram: list[int]
    """Number of sentences in each bin."""
    alpha: float | None = None


@dataclass(frozen=True)
class DensityResult:
    """The heads of one model."""

    model: str
    heads: dict[Head, HeadDensity]

    def at(self, site: SiteName) -> dict[Head, HeadDensity]:
        """Return the heads of one site."""
        return {key: each for key, each in self.heads.items() if key[0] == site}

    def site_mean(self, site: SiteName, name: str) -> float | None:
        """Return the mean of an attribute over the heads of a site; None: no query of them saw anything."""
        values = [value for each in self.at(site).values() if (value := getattr(each, name)) is not None]
        return sum(values) / len(values) if values else None

    def layer(self, site: SiteName, layer: int) -> DensityResult:
        """Return the heads of one layer of a site."""
        return DensityResult(self.model, {key: each for key, each in self.heads.items() if key[:2] == (site, layer)})

    def histogram(self, site: SiteName) -> list[int]:
        """Return the number of pairs of a head and a sentence in each bin."""
        return [sum(counts) for counts in zip(*(each.histogram for each in self.at(site).values()), strict=True)]


def report(found: Sequence[DensityResult]) -> Report:
    """Make four tables: sites; layers; heads, by density within a layer; histograms."""
    sites, layers, heads, bins = [], [], [], []
    for each in found:
        for site in SITES:
            own = each.at(site)
            if not own:
                continue
            name = SITE_NAMES[site]
            means = [each.site_mean(site, measure) for measure in _MEASURES]
            sites.append((each.model, name, *means, len(own), max(one.sentences for one in own.values())))
            for layer in sorted({layer for _, layer, _ in own}):
                within = each.layer(site, layer)
                means = [within.site_mean(site, measure) for measure in _MEASURES]
                layers.append((each.model, name, str(layer), *means))
            ordered = sorted(own.items(), key=lambda item: (item[0][1], item[1].density or 0.0))
            for (_, layer, number), one in ordered:
                own_cells = (one.density, one.attended, one.visible, one.alpha)
                heads.append((each.model, name, *head_cells(layer, number), *own_cells))
            total = each.histogram(site)
            for i, count in enumerate(total):
                share = count / sum(total) if sum(total) else None
                bins.append((each.model, name, f"{i / BINS:.2f} to {(i + 1) / BINS:.2f}", i / BINS, count, share))
    measures = columns("share density", "number attended visible")
    alpha = Column("alpha", "number", any(row[-1] is not None for row in heads))
    site_columns = (*columns("text model site"), *measures, *columns("count heads sentences"))
    layer_columns = (*columns("text model site layer"), *measures)
    head_columns = (*columns("text model site"), *HEAD_COLUMNS, *measures, alpha)
    bin_columns = columns("text model site density", "hidden number from", "count count", "share share")
    of_sites = "share of visible positions with weight, and positions a query"
    of_layers = "positions with weight a query, mean over the heads of a layer"
    of_heads = "density of every head (layer.head), from the sparsest of its layer"
    in_bins = "heads on sentences by density"
    tables = (
        Table("sites", of_sites, site_columns, sites),
        Table("layers", of_layers, layer_columns, layers, across="model", shown="attended"),
        Table("heads", of_heads, head_columns, heads, across="model", shown="density"),
        Table("histogram", in_bins, bin_columns, bins, across="model", shown="share", listed=False),
    )
    return Report("density", tables)


def panels(found: Sequence[DensityResult]) -> list[list[Panel]]:
    """Draw one column for each site: the histograms of all models (Fig. 4); below, each model's heads (Fig. 5)."""
    sites = [site for site in SITES if any(each.at(site) for each in found)]
    return [
        [_histogram_panel(found, site) for site in sites],
        *([_layer_panel(each, site) for site in sites] for each in found),
    ]


def _histogram_panel(found: Sequence[DensityResult], site: SiteName) -> Panel:
    """Draw the share of heads on sentences in each bin of density, one outline for each model."""
    series = {}
    for each in found:
        total = each.histogram(site)
        shares = [count / max(sum(total), 1) for count in total]
        series[each.model] = [*((i / BINS, share) for i, share in enumerate(shares)), (1.0, 0.0)]
    x, y, title = "density (share of visible positions with weight)", "share of heads on sentences", site_title(site)
    return Panel(x, y, series, title=title, percent="xy", style="steps", x_range=(0.0, 1.0))


def _layer_panel(found: DensityResult, site: SiteName) -> Panel:
    """Draw a curve for the sparsest head of every layer, one for the second sparsest, and so on."""
    layers: dict[int, list[float]] = {}
    for (_, layer, _), one in found.at(site).items():
        layers.setdefault(layer, []).append(one.density or 0.0)
    ordered = {layer: sorted(values) for layer, values in sorted(layers.items())}
    points: list[tuple[float, float | None]] = []
    for rank in range(max(map(len, ordered.values()), default=0)):
        points += [(float(layer), values[rank]) for layer, values in ordered.items() if rank < len(values)]
        points.append((float("nan"), None))
    series, title, ticks = {found.model: points}, site_title(site, found.model), number_ticks(ordered)
    where, density = layer_label(site), "density of a head"
    return Panel(where, density, series, title=title, percent="y", y_range=(0.0, None), ticks=ticks)
