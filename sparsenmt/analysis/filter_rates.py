"""The rates of each filter, by the encoder layer after which it stands: gates that are exactly 0, exactly 1, or between
(gates between encoder layers: Zhang, Titov and Sennrich 2021, section 6).

A position that an earlier filter has masked counts as closed for all later filters, and one that an earlier filter of
the same place has closed for those that follow it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from sparsenmt.analysis.labels import number_ticks
from sparsenmt.analysis.observe import TensorSums
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.model.protocol import GatesSeen
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns


def measure_filter_rates(session: AnalysisSession) -> AnalysisResult:
    """Make the report ``layers``."""
    notes = session.notes_on_filters(needed=True)
    found = {}
    for model in session.opened():
        counter = GateCounter()
        with model.batches("gates") as text, model.bundle.model.listen_to_gates(counter):
            for _ in text.encoded():
                pass
        positions = sum(len(line.ids) for line in model.sources)
        found[model.label] = counter.shares(positions)
    return session.result(report(found), lambda: curves(panels(found)), notes=notes)


@dataclass(frozen=True)
class FilterPlace:
    """The place of a filter in a model."""

    depth: int
    """Encoder layers executed before it."""
    place: Literal["between", "output"]
    index: int
    """Its number among the filters of its place, from 0."""

    @property
    def name(self) -> str:
        """The name in reports, such as "after layer 2"."""
        place = f"after layer {self.depth}" if self.place == "between" else "output"
        return place if self.index == 0 else f"{place}, filter {self.index + 1}"


@dataclass(frozen=True)
class FilterShares:
    """The gates that a filter gave to source positions."""

    positions: int
    closed: float
    """Share whose gate is exactly 0."""
    opened: float
    """Share whose gate is exactly 1."""

    @property
    def partial(self) -> float:
        """Share whose gate is neither 0 nor 1."""
        return 1 - self.closed - self.opened


class GateCounter:
    """An observer (`TranslationModel.listen_to_gates`) that counts gates of source positions."""

    def __init__(self) -> None:
        self._sums: TensorSums[FilterPlace] = TensorSums()  # (2,): gates of 0, and neither 0 nor 1

    def __call__(self, seen: GatesSeen) -> None:
        sums = torch.stack([seen.closed.sum(), seen.partial.sum()])
        self._sums.add(FilterPlace(seen.depth, seen.place, seen.index), sums.cpu())

    def shares(self, positions: int) -> dict[FilterPlace, FilterShares]:
        """Return each filter's shares of all real source ``positions``, in the order of execution."""
        found = {}
        for key in sorted(self._sums, key=lambda each: (each.depth, each.place == "between", each.index)):
            closed, partial = self._sums[key].tolist()
            found[key] = FilterShares(positions, closed / positions, (positions - closed - partial) / positions)
        return found


def report(found: Mapping[str, Mapping[FilterPlace, FilterShares]]) -> Report:
    """Make the table: one row for each filter."""
    rows = [
        (model, key.name, key.depth, key.place, key.index, s.positions, s.closed, s.partial, s.opened)
        for model, shares in found.items()
        for key, s in shares.items()
    ]
    hidden = ("hidden count after_layer", "hidden text place", "hidden count index")
    heads = columns("text model filter", *hidden, "count positions", "share sparsity partial open")
    title = "gates of every filter: exactly 0 (sparsity), between, exactly 1"
    return Report("layers", (Table("layers", title, heads, rows),))


def panels(found: Mapping[str, Mapping[FilterPlace, FilterShares]]) -> list[Panel]:
    """Draw the rate against the layer; of several filters in one place, the last."""
    series = {
        model: sorted({key.depth: s.closed for key, s in shares.items()}.items()) for model, shares in found.items()
    }
    depths = sorted({depth for points in series.values() for depth, _ in points})
    style: Literal["bars", "curves"] = "bars" if len(depths) == 1 else "curves"
    label = "encoder layers before the filter"
    return [Panel(label, "sparsity rate", series, percent="y", ticks=number_ticks(depths), style=style)]
