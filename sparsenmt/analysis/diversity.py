"""How much the heads of a layer disagree: Jensen-Shannon divergence (Correia, Niculae and Martins 2019, Eq. 11).

For one query, ``JS = H(mean of the heads' weights) - mean of H(a head's weights)``, H being the entropy to the base of
the number of keys that the query may see, so that JS is at most 1. It is averaged over all queries of all sentences.
Queries that see one key are skipped: all heads agree on it. So are, in a row, heads that look nowhere (a given head
whose target lies outside the sentence): they have no distribution; a row with fewer than two others is skipped.
Shapes: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.analysis.observe import SITE_NAMES, Attended
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value


def divergences(seen: Attended) -> Tensor:
    """(N,) of the rows that count, float64."""
    weights = seen.weights.transpose(1, 2)[seen.real].double()  # (N, H, K)
    keys = seen.visible.any(1)[seen.real].sum(-1)  # (N,)
    sums = weights.sum(-1, keepdim=True)
    looking = sums > 0  # (N, H, 1)
    heads = looking.sum(1)  # (N, 1)
    counted = (keys > 1) & (heads[:, 0] > 1)
    p = weights / torch.where(looking, sums, 1.0)
    own = _entropy(p).sum(1) / heads[:, 0].clamp_min(1)  # a head that looks nowhere has none
    whole = _entropy(p.sum(1) / heads.clamp_min(1))
    found: Tensor = ((whole - own) / keys.clamp_min(2).double().log())[counted]
    return found


def _entropy(p: Tensor) -> Tensor:
    value: Tensor = -torch.special.xlogy(p, p).sum(-1)
    return value


class DivergenceCounter:
    """An observer (`observe.observe`) that averages over queries; of every layer a sum and a count are kept."""

    def __init__(self) -> None:
        self._sums: dict[tuple[SiteName, int], tuple[float, int]] = {}

    def __call__(self, seen: Attended) -> None:
        values = divergences(seen)
        total, count = self._sums.get((seen.site, seen.layer), (0.0, 0))
        self._sums[seen.site, seen.layer] = total + float(values.sum()), count + len(values)

    def found(self, model: str) -> DiversityResult:
        """What was gathered."""
        means = {key: Mean(total / count if count else None, count) for key, (total, count) in self._sums.items()}
        return DiversityResult(model, means)


@dataclass(frozen=True)
class Mean:
    """Mean divergence of a layer's heads; None: there was no row to measure it on."""

    value: float | None
    queries: int


@dataclass(frozen=True)
class DiversityResult:
    """One model's layers, by site and number, from 1."""

    model: str
    layers: dict[tuple[SiteName, int], Mean]


def report(found: Sequence[DiversityResult]) -> Report:
    """A row a layer."""
    rows: list[tuple[Value, ...]] = [
        (each.model, SITE_NAMES[site], str(layer), mean.value, mean.queries)
        for each in found
        for wanted in SITES
        for (site, layer), mean in sorted(each.layers.items())
        if site == wanted
    ]
    columns = (Column("model"), Column("site"), Column("layer"), Column("divergence", "number"))
    title = "Jensen-Shannon divergence between the heads of a layer, 0 to 1"
    table = Table(
        "diversity", title, (*columns, Column("queries", "count")), tuple(rows), across="model", shown="divergence"
    )
    return Report("diversity", (table,))


def panels(found: Sequence[DiversityResult]) -> list[Panel]:
    """A diagram a site: the divergence against the layer, a curve a model (Fig. 6)."""
    result = []
    for site in SITES:
        layers = sorted({layer for each in found for where, layer in each.layers if where == site})
        if not layers:
            continue
        series = {
            each.model: [(float(n), each.layers[site, n].value) for n in layers if (site, n) in each.layers]
            for each in found
        }
        ticks = [(float(layer), str(layer)) for layer in layers]
        title = f"{SITE_NAMES[site]}-attention"
        result.append(
            Panel("layer", "Jensen-Shannon divergence", series, title=title, ticks=ticks, y_range=(0.0, None))
        )
    return result
