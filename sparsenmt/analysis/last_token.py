"""Cross-attention mass on the end of the source: a vanilla decoder looks at the last token (Zhao et al., Extremely
Sparse Transformer with Top-k Selective Attention, 7.3).

The last source token is ``</s>``; the token before it is reported beside. Mass is averaged over heads and over all
target positions of all sentences. ``even`` is the mass on ``</s>`` if all visible positions had the same weight.
Positions that a filter has closed get nothing: their mass is that of the stand-in vector.
Shapes: B sentences, H heads, T target positions, S source positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparsenmt.analysis.gates import GatedLine
from sparsenmt.analysis.labels import number_ticks
from sparsenmt.analysis.observe import Attended, TensorSums
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns

EVEN = "equal weights"


def measure_last_token(session: AnalysisSession) -> AnalysisResult:
    """Make the report ``last-token``."""
    notes = session.notes_on_filters(needed=False)
    found = []
    for model in session.opened():
        targets = model.targets
        found.append(model.attend(LastTokenCounter(model.gates), ["cross"], targets).result(model.label))
    notes = notes if len(notes) < len(session.models) else []  # only of interest beside a model that drops something
    notes += session.notes_on_weights()
    settings = {"target": str(session.target) if session.target else None}
    return session.result(report(found), lambda: curves(panels(found)), settings=settings, notes=notes)


class LastTokenCounter:
    """An observer (`observe.observe`) of cross-attention over these lines."""

    def __init__(self, lines: Sequence[GatedLine]) -> None:
        self._lines = lines
        self._sums: TensorSums[int] = TensorSums()  # (H, 4): </s>, the token before it, even, largest
        self._rows: dict[int, int] = {}  # layer -> target positions

    def __call__(self, seen: Attended) -> None:
        if seen.site != "cross":
            return
        lines = [self._lines[place] for place in seen.places]
        weights = seen.shares.double()
        ends = [len(each.line.frame.prefix) + each.line.kept for each in lines]  # after at least one token
        last = torch.tensor(ends, device=weights.device)
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
        self._sums.add(seen.layer, torch.stack([part.double() for part in parts], -1).cpu())
        self._rows[seen.layer] = self._rows.get(seen.layer, 0) + int(seen.real.sum())

    def result(self, model: str) -> LastTokenResult:
        """Return the masses of one model."""
        layers = {}
        for layer, sums in sorted(self._sums.items()):
            rows = self._rows[layer]
            heads = (sums / max(rows, 1)).tolist()
            last, before, even, largest = (sum(values) / len(heads) for values in zip(*heads, strict=True))
            layers[layer] = LastTokenMass(last, before, even, largest, [head[0] for head in heads], rows)
        closed = sum(bool(each.dropped[-1]) for each in self._lines) / len(self._lines)
        return LastTokenResult(model, layers, closed)


@dataclass(frozen=True)
class LastTokenMass:
    """The masses of one decoder layer, mean over heads and target positions.

    Args:
        largest: share of heads at target positions where no token gets more than ``</s>``.
        heads: (H,) mass on ``</s>``.
        positions: number of target positions.
    """

    last: float
    before: float
    even: float
    largest: float
    heads: list[float]
    positions: int


@dataclass(frozen=True)
class LastTokenResult:
    """The decoder layers of one model, from 1."""

    model: str
    layers: dict[int, LastTokenMass]
    closed: float = 0.0
    """Share of sentences whose ``</s>`` a filter has closed."""


def report(found: Sequence[LastTokenResult]) -> Report:
    """Make two tables: layers and heads."""
    layers = [
        (each.model, str(layer), m.last, m.before, m.even, m.largest, m.positions)
        for each in found
        for layer, m in each.layers.items()
    ]
    heads = [
        (each.model, layer, number, mass)
        for each in found
        for layer, m in each.layers.items()
        for number, mass in enumerate(m.heads, start=1)
    ]
    layer_columns = columns("text model layer", "share last before_last even largest", "count target_positions")
    head_columns = columns("text model", "count layer head", "share last")
    title = "cross-attention mass on the last source token, </s>"
    notes = (
        "last: mass on </s>; before last: on the token before it; even: on </s>, if all weights were equal",
        "largest: heads at target positions where no token gets more than </s>",
    )
    closed = [
        f"{f.model}: </s> is closed in {f.closed:.1%} of the sentences, and gets nothing there"
        for f in found
        if f.closed
    ]
    tables = (
        Table("last-token", title, layer_columns, layers),
        Table("heads", f"{title}, by head", head_columns, heads, listed=False),
    )
    return Report("last-token", tables, (*notes, *closed))


def panels(found: Sequence[LastTokenResult]) -> list[Panel]:
    """Draw the mass against the layer, one curve for each model, and the mass that equal weights would give."""
    series = {each.model: [(float(layer), m.last) for layer, m in each.layers.items()] for each in found}
    series[EVEN] = [(float(layer), m.even) for layer, m in found[0].layers.items()]
    ticks = number_ticks(sorted({layer for each in found for layer in each.layers}))
    return [Panel("decoder layer", "attention mass on the last source token", series, percent="y", ticks=ticks)]
