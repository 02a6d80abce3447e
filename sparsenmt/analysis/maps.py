"""Cross-attention maps of single sentences, several models side by side (Zhang, Titov and Sennrich 2021, Fig. 2).

Dropped words get nothing: what the decoder gives to the zero vector that stands for them is a column of its own.
Shapes: S source positions, T target positions, C columns of a map: S, and before them the stand-in if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.cross_attention import AttentionMap
from sparsenmt.analysis.pieces import left, right, shown_pieces, width
from sparsenmt.analysis.plots import Heatmap
from sparsenmt.analysis.tables import Column, Report, Table, Value
from sparsenmt.data.tokenizer import Tokenizers
from sparsenmt.errors import printable

STAND_IN = "(dropped)"
_DOT = "·"  # a weight of exactly 0


@dataclass(frozen=True)
class NamedMap:
    """One model's map of one sentence."""

    sentence: int
    """The line of the input, from 1."""
    model: str
    rows: list[str]
    """(T,) target pieces."""
    columns: list[str]
    """(C,) source pieces."""
    dropped: list[bool]
    """(C,)"""
    weights: NDArray[np.float64]
    """(T, C)"""
    stand_in: bool
    """Whether the first column is the stand-in."""


def name_map(model: str, seen: AttentionMap, tokenizers: Tokenizers) -> NamedMap:
    """Put names to rows and columns, and the mass of dropped columns into that of the stand-in."""
    dropped = seen.source.dropped
    columns = shown_pieces(tokenizers.source.pieces(seen.source.line.ids))
    weights, flags = np.where(dropped, 0.0, seen.weights), dropped.tolist()
    stand_in = bool(dropped.any())
    if stand_in:
        columns, flags = [STAND_IN, *columns], [False, *flags]
        weights = np.concatenate([seen.weights[:, dropped].sum(1, keepdims=True), weights], 1)
    rows = shown_pieces(tokenizers.target.pieces(seen.target))
    return NamedMap(seen.source.line.number + 1, model, rows, columns, flags, weights, stand_in)


def text(each: NamedMap) -> str:
    """A map as text: percent, a dot for exactly 0, dropped words in brackets."""
    heads = [f"[{name}]" if dropped else name for name, dropped in zip(each.columns, each.dropped, strict=True)]
    sizes = [max(width(head), 3) for head in heads]
    side = max([width(name) for name in each.rows], default=0)
    rows = [heads, *([_percent(value) for value in row] for row in each.weights.tolist())]
    lines = [
        f"{left(name, side)}  {' '.join(right(cell, size) for cell, size in zip(row, sizes, strict=True))}"
        for name, row in zip(["", *each.rows], rows, strict=True)
    ]
    return "\n".join([f"sentence {each.sentence}, {printable(each.model)} (attention in percent)", *lines])


def _percent(value: float) -> str:
    return _DOT if value == 0 else f"{value * 100:.0f}"


def report(maps: Sequence[NamedMap], *, layer: int | None) -> Report:
    """Every weight in a row. Source positions count from 0; the stand-in is -1, as in the engine."""
    rows: list[tuple[Value, ...]] = []
    for each in maps:
        for t, target in enumerate(each.rows):
            for c, source in enumerate(each.columns):
                place = c - 1 if each.stand_in else c
                closed = int(each.dropped[c])
                rows.append((each.sentence, each.model, t, target, place, source, closed, float(each.weights[t, c])))
    columns = (
        *(Column("sentence", "count"), Column("model"), Column("target_position", "count"), Column("target")),
        *(Column("source_position", "count"), Column("source"), Column("dropped", "count"), Column("weight", "number")),
    )
    title = "cross-attention"
    settings = {"layer": layer}
    return Report("maps", (Table("maps", title, columns, tuple(rows)),), settings=settings)


def grid(maps: Sequence[NamedMap]) -> list[list[Heatmap]]:
    """For a plot: a line a sentence, a column a model."""
    lines: dict[int, list[Heatmap]] = {}
    for each in maps:
        title = f"{each.model}, sentence {each.sentence}"
        drawn = Heatmap(title, each.rows, each.columns, each.weights, each.dropped)
        lines.setdefault(each.sentence, []).append(drawn)
    most = max(map(len, lines.values()))  # a line that is empty to one of the models' tokenizers is not drawn
    return [line for line in lines.values() if len(line) == most]
