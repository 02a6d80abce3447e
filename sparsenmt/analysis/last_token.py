"""Cross-attention mass on the end of the source: a vanilla decoder looks at the last token (Zhao et al., Extremely
Sparse Transformer with Top-k Selective Attention, 7.3).

The last source token is ``</s>``, as the encoder sees it; the last piece before it stands beside. Mass is averaged over
heads and over all target positions of all sentences. ``even`` is what equal weights on all visible positions would
give. What a filter has closed gets nothing: its mass is the stand-in's.
Shapes: B sentences, H heads, T target positions, S source positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.analysis.gates import GatedLine
from sparsenmt.analysis.observe import Attended
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value

EVEN = "equal weights"
_MEASURES = 4  # </s>, the piece before it, even, largest


class LastTokenCounter:
    """An observer (`observe.observe`) of cross-attention.

    Args:
        lines: all that are read, with their gates.
    """

    def __init__(self, lines: Sequence[GatedLine]) -> None:
        self._lines = lines
        self._sums: dict[int, Tensor] = {}  # (H, _MEASURES)
        self._rows: dict[int, int] = {}

    def __call__(self, seen: Attended) -> None:
        if seen.site != "cross":
            return
        lines = [self._lines[place] for place in seen.places]
        weights = seen.weights.double()
        last = torch.tensor([len(each.line.ids) - 1 for each in lines], device=weights.device)  # at least one piece
        real = seen.real[:, None].double()  # (B, 1, T)
        masses = []
        for place in (last, last - 1):
            mass = weights.gather(-1, place.clamp_min(0)[:, None, None, None].expand(*weights.shape[:3], 1))[..., 0]
            opened = [not each.dropped[i] for each, i in zip(lines, place.tolist(), strict=True)]
            masses.append(mass * torch.tensor(opened, device=mass.device)[:, None, None])
        visible = seen.head_visible
        at_last = visible.gather(-1, last[:, None, None, None].expand(*weights.shape[:3], 1))[..., 0]
        even = at_last / visible.sum(-1).clamp_min(1)
        largest = (masses[0] > 0) & (masses[0] >= weights.amax(-1))
        parts = [(each * real).sum((0, 2)) for each in (*masses, even, largest)]
        added = torch.stack([part.double() for part in parts], -1).cpu()
        self._sums[seen.layer] = added if seen.layer not in self._sums else self._sums[seen.layer] + added
        self._rows[seen.layer] = self._rows.get(seen.layer, 0) + int(seen.real.sum())

    def found(self, model: str) -> LastTokenResult:
        """What was gathered."""
        layers = {}
        for layer, sums in sorted(self._sums.items()):
            rows = self._rows[layer]
            heads = (sums / max(rows, 1)).tolist()
            last, before, even, largest = (sum(values) / len(heads) for values in zip(*heads, strict=True))
            layers[layer] = LayerMass(last, before, even, largest, [head[0] for head in heads], rows)
        closed = sum(bool(each.dropped[-1]) for each in self._lines) / len(self._lines) if self._lines else 0.0
        return LastTokenResult(model, layers, closed)


@dataclass(frozen=True)
class LayerMass:
    """One decoder layer, mean over heads and target positions."""

    last: float
    """Mass on ``</s>``."""
    before: float
    """Mass on the last piece before it."""
    even: float
    """What ``</s>`` would get of equal weights."""
    largest: float
    """Share of rows, a head and a target position each, where nothing gets more than ``</s>``."""
    heads: list[float]
    """(H,) mass on ``</s>``."""
    positions: int
    """Target positions."""


@dataclass(frozen=True)
class LastTokenResult:
    """One model's decoder layers, from 1."""

    model: str
    layers: dict[int, LayerMass]
    closed: float = 0.0
    """Share of sentences whose ``</s>`` a filter has closed."""


def report(found: Sequence[LastTokenResult]) -> Report:
    """A row a layer; a row a head."""
    layers: list[tuple[Value, ...]] = [
        (each.model, str(layer), m.last, m.before, m.even, m.largest, m.positions)
        for each in found
        for layer, m in each.layers.items()
    ]
    heads: list[tuple[Value, ...]] = [
        (each.model, layer, number, mass)
        for each in found
        for layer, m in each.layers.items()
        for number, mass in enumerate(m.heads, start=1)
    ]
    columns = (
        *(Column("model"), Column("layer"), Column("last", "share"), Column("before_last", "share")),
        *(Column("even", "share"), Column("largest", "share"), Column("target_positions", "count")),
    )
    single = (Column("model"), Column("layer", "count"), Column("head", "count"), Column("last", "share"))
    title = "cross-attention mass on the last source token, </s>"
    notes = (
        "last: mass on </s>; before last: on the piece before it; even: what </s> would get of equal weights",
        "largest: heads at target positions where no token gets more than </s>",
    )
    closed = [
        f"{f.model}: </s> is closed in {f.closed:.1%} of the sentences, and gets nothing there"
        for f in found
        if f.closed
    ]
    tables = (
        Table("last-token", title, columns, tuple(layers)),
        Table("heads", f"{title}, by head", single, tuple(heads), listed=False),
    )
    return Report("last-token", tables, (*notes, *closed))


def panels(found: Sequence[LastTokenResult]) -> list[Panel]:
    """Mass against the layer, a curve a model, with the share that equal weights would give."""
    series: dict[str, list[tuple[float, float | None]]] = {
        each.model: [(float(layer), m.last) for layer, m in each.layers.items()] for each in found
    }
    if found:
        series[EVEN] = [(float(layer), m.even) for layer, m in found[0].layers.items()]
    layers = sorted({layer for each in found for layer in each.layers})
    ticks = [(float(layer), str(layer)) for layer in layers]
    return [Panel("decoder layer", "mass on the last source token", series, percent="y", ticks=ticks)]
