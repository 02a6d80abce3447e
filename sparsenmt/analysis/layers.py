"""Rates of every filter, by the encoder layer after which it stands; and how many gates are exactly 0, exactly 1, or
between (gates between encoder layers: Zhang, Titov and Sennrich 2021, section 6).

A position that an earlier filter has masked away counts as closed for all later ones: it is gone.
Shapes: B sentences, S' entries of a memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparsenmt.model.protocol import GatesSeen
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value


@dataclass(frozen=True)
class Filter:
    """Which filter of a model."""

    depth: int
    """Encoder layers executed before it."""
    place: Literal["between", "output"]
    index: int
    """Among the filters of its place."""


@dataclass(frozen=True)
class LayerShares:
    """What a filter did to so many source positions."""

    positions: int
    closed: float
    """Share whose gate is exactly 0."""
    opened: float
    """Share whose gate is exactly 1."""

    @property
    def partial(self) -> float:
        """Share whose gate is neither."""
        return 1 - self.closed - self.opened


class GateCounter:
    """An observer (`TranslationModel.listen_to_gates`) that counts gates, each as often as its entry's count."""

    def __init__(self) -> None:
        self._zero: dict[Filter, float] = {}
        self._one: dict[Filter, float] = {}
        self._there: dict[Filter, float] = {}

    def __call__(self, seen: GatesSeen) -> None:
        memory = seen.memory
        counts = memory.valid.double() if memory.counts is None else memory.counts.double() * memory.valid
        gates = seen.gates.values
        key = Filter(seen.depth, seen.place, seen.index)
        for sums, chosen in ((self._zero, gates == 0), (self._one, gates == 1), (self._there, gates >= 0)):
            sums[key] = sums.get(key, 0.0) + float((counts * chosen).sum())

    def shares(self, positions: int) -> dict[Filter, LayerShares]:
        """What every filter did, in the order of execution.

        Args:
            positions: real source positions that the model read while this listened.
        """
        found = {}
        for key in sorted(self._there, key=lambda each: (each.depth, each.place == "between", each.index)):
            gone = positions - self._there[key]
            found[key] = LayerShares(positions, (self._zero[key] + gone) / positions, self._one[key] / positions)
        return found


@dataclass(frozen=True)
class LayerResult:
    """One model's filters."""

    model: str
    shares: dict[Filter, LayerShares]


def report(found: Sequence[LayerResult]) -> Report:
    """A row a filter."""
    rows: list[tuple[Value, ...]] = [
        (each.model, _name(key), key.depth, key.place, key.index, s.positions, s.closed, s.partial, s.opened)
        for each in found
        for key, s in each.shares.items()
    ]
    columns = (
        *(
            Column("model"),
            Column("filter"),
            Column("after_layer", "count", False),
            Column("place", shown=False),
            Column("index", "count", False),
        ),
        *(Column("positions", "count"), Column("sparsity", "share")),
        *(Column("partial", "share"), Column("open", "share")),
    )
    title = "gates of every filter: exactly 0 (sparsity), between, exactly 1"
    return Report("layers", (Table("layers", title, columns, tuple(rows)),))


def _name(key: Filter) -> str:
    place = f"after layer {key.depth}" if key.place == "between" else "output"
    return place if key.index == 0 else f"{place}, filter {key.index + 1}"


def panels(found: Sequence[LayerResult]) -> list[Panel]:
    """The rate against the layer; of several filters in one place, the last."""
    series = {each.model: sorted({key.depth: s.closed for key, s in each.shares.items()}.items()) for each in found}
    depths = sorted({depth for points in series.values() for depth, _ in points})
    return [
        Panel(
            "encoder layers before the filter",
            "sparsity rate",
            series,
            percent="y",
            ticks=[(depth, str(depth)) for depth in depths],
        )
    ]
