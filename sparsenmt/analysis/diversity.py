"""The disagreement of the heads of a layer: Jensen-Shannon divergence (Correia, Niculae and Martins 2019, Eq. 11).

For one query, ``JS = H(mean of the heads' weights) - mean of H(a head's weights)``. The base of the entropy H is the
number of keys that the query may see, so that JS is at most 1. It is averaged over all queries of all sentences.
Queries that see one key are skipped: all heads agree on it. A head without any weight for a query (a fixed head whose
target lies outside the sentence) has no distribution and is left out; a query with fewer than two others is skipped.
Shapes: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.analysis.labels import SITE_NAMES, layer_label, number_ticks, site_title
from sparsenmt.analysis.observe import Attended, TensorSums
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns


def measure_diversity(session: AnalysisSession, *, sites: Sequence[SiteName] = SITES) -> AnalysisResult:
    """Make the report ``diversity``."""
    found = {model.label: model.attend(DiversityCounter(), sites).layers() for model in session.opened(any_task=True)}
    settings = session.attention_settings(sites)
    notes = session.notes_on_weights()
    return session.result(report(found), lambda: curves(panels(found)), settings=settings, notes=notes)


def divergences(seen: Attended) -> Tensor:
    """Compute the divergences of the N queries that count, (N,), float64."""
    weights = seen.weights.transpose(1, 2)[seen.real].double()  # (N, H, K)
    keys = seen.visible.any(1)[seen.real].sum(-1)  # (N,)
    sums = weights.sum(-1, keepdim=True)
    looking = sums > 0  # (N, H, 1)
    heads = looking.sum(1)  # (N, 1)
    counted = (keys > 1) & (heads[:, 0] > 1)
    p = weights / torch.where(looking, sums, 1.0)
    own = _entropy(p).sum(1) / heads[:, 0].clamp_min(1)  # a head without weight has none
    whole = _entropy(p.sum(1) / heads.clamp_min(1))
    found: Tensor = ((whole - own) / keys.clamp_min(2).double().log())[counted]
    return found


def _entropy(p: Tensor) -> Tensor:
    """Return the entropy of distributions (..., K) in nats, (...)."""
    value: Tensor = -torch.special.xlogy(p, p).sum(-1)
    return value


class DiversityCounter:
    """An observer (`observe.observe`) that adds up the divergences of every layer."""

    def __init__(self) -> None:
        self._sums: TensorSums[tuple[SiteName, int]] = TensorSums()  # (2,): the sum over queries, and their number

    def __call__(self, seen: Attended) -> None:
        values = divergences(seen)
        self._sums.add((seen.site, seen.layer), torch.stack([values.sum(), values.new_tensor(len(values))]).cpu())

    def layers(self) -> Layers:
        """Return the mean divergences."""
        sums = {key: each.tolist() for key, each in self._sums.items()}
        return {key: LayerDivergence(total / n if n else None, int(n)) for key, (total, n) in sums.items()}


@dataclass(frozen=True)
class LayerDivergence:
    """The mean divergence of a layer's heads; None: no query counts."""

    value: float | None
    queries: int


Layers = dict[tuple[SiteName, int], LayerDivergence]
"""The layers of one model, by site and number, from 1."""


def report(found: Mapping[str, Layers]) -> Report:
    """Make the table: one row for each layer of a site."""
    rows = [
        (model, SITE_NAMES[site], str(layer), mean.value, mean.queries)
        for model, layers in found.items()
        for wanted in SITES
        for (site, layer), mean in sorted(layers.items())
        if site == wanted
    ]
    heads = columns("text model site layer", "number divergence", "count queries")
    title = "Jensen-Shannon divergence between the heads of a layer, 0 to 1"
    return Report("diversity", (Table("diversity", title, heads, rows, across="model", shown="divergence"),))


def panels(found: Mapping[str, Layers]) -> list[Panel]:
    """Draw one diagram for each site: the divergence against the layer, one curve for each model (Fig. 6)."""
    result = []
    for site in SITES:
        numbers = sorted({layer for layers in found.values() for where, layer in layers if where == site})
        if not numbers:
            continue
        series = {
            model: [(float(n), layers[site, n].value) for n in numbers if (site, n) in layers]
            for model, layers in found.items()
        }
        ticks, title = number_ticks(numbers), site_title(site)
        result.append(
            Panel(layer_label(site), "Jensen-Shannon divergence", series, title=title, ticks=ticks, y_range=(0.0, None))
        )
    return result
