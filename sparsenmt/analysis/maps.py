"""Attention maps of single sentences, several models side by side (Zhang, Titov and Sennrich 2021, Fig. 2; Correia,
Niculae and Martins 2019, Fig. 7 to 10).

At cross-attention, dropped words get nothing: what the decoder gives to the zero vector that stands for them is a
column of its own. At self-attention, rows and columns are the pieces that the stack reads, so that the decoder begins
with ``<s>``, and is one piece behind what it writes.
Shapes: Q queries, K keys, C columns of a map: K, and before them the stand-in if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.cross_attention import Part, Pick, PickedAttention
from sparsenmt.analysis.gates import GatedLine
from sparsenmt.analysis.observe import SITE_NAMES, Output, head_name
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import printable
from sparsenmt.model.sites import SiteName
from sparsenmt.report.columns import left, right, shown_pieces, width
from sparsenmt.report.plots import Heatmap
from sparsenmt.report.tables import Column, Report, Table, Value

STAND_IN = "(dropped)"
_DOT = "·"  # a weight of exactly 0
_GAP = "   "  # between maps that stand side by side


@dataclass(frozen=True)
class NamedMap:
    """One model's map of one sentence."""

    sentence: int
    """The line of the input, from 1."""
    model: str
    site: SiteName
    part: Part
    rows: list[str]
    """(Q,) pieces that look."""
    columns: list[str]
    """(C,) pieces that are looked at."""
    dropped: list[bool]
    """(C,)"""
    weights: NDArray[np.float64]
    """(Q, C)"""
    stand_in: bool
    """Whether the first column is the stand-in."""

    @property
    def title(self) -> str:
        return self.model if self.part is None else f"{self.model}, head {head_name(*self.part)}"


def named_maps(
    model: str,
    lines: Sequence[GatedLine],
    outputs: Sequence[Output],
    seen: PickedAttention,
    pick: Pick,
    tokenizers: Tokenizers,
) -> list[NamedMap]:
    """All maps of a model, sentence by sentence, head by head; ``outputs`` are read along the lines."""
    found = []
    for place, (line, output) in enumerate(zip(lines, outputs, strict=True)):
        ids = line.line.ids
        source = shown_pieces(tokenizers.source.pieces(ids))
        if pick.site == "encoder_self":
            rows = columns = source
        elif pick.site == "decoder_self":
            rows = columns = shown_pieces(tokenizers.target.pieces(output.inputs[: len(output.ids)]))
        else:
            rows, columns = shown_pieces(tokenizers.target.pieces(output.ids)), source
        for part in seen.parts():
            weights = seen.weights(place, part, len(rows), len(columns))
            number = line.line.number + 1
            whole = NamedMap(
                number, model, pick.site, part, rows, columns, [False] * len(columns), weights, stand_in=False
            )
            found.append(_with_stand_in(whole, line.dropped) if pick.site == "cross" else whole)
    return found


def _with_stand_in(whole: NamedMap, dropped: NDArray[np.bool_]) -> NamedMap:
    """Put the mass of dropped columns into that of the stand-in, if any are dropped."""
    if not dropped.any():
        return whole
    mass = whole.weights[:, dropped].sum(1, keepdims=True)
    weights = np.concatenate([mass, np.where(dropped, 0.0, whole.weights)], 1)
    columns, flags = [STAND_IN, *whole.columns], [False, *dropped.tolist()]
    part, rows = whole.part, whole.rows
    return NamedMap(whole.sentence, whole.model, whole.site, part, rows, columns, flags, weights, stand_in=True)


def block(each: NamedMap) -> list[str]:
    """The lines of a map as text: percent, a dot for exactly 0, dropped words in brackets."""
    heads = [f"[{name}]" if dropped else name for name, dropped in zip(each.columns, each.dropped, strict=True)]
    sizes = [max(width(head), 3) for head in heads]
    side = max([width(name) for name in each.rows], default=0)
    rows = [heads, *([_percent(value) for value in row] for row in each.weights.tolist())]
    lines = [
        f"{left(name, side)}  {' '.join(right(cell, size) for cell, size in zip(row, sizes, strict=True))}"
        for name, row in zip(["", *each.rows], rows, strict=True)
    ]
    return [printable(each.title), *lines]


def text(maps: Sequence[NamedMap], columns: int) -> str:
    """Maps sentence by sentence, side by side, as many as so many columns of a terminal hold."""
    parts: list[str] = []
    for (sentence, site), group in groupby(maps, key=lambda each: (each.sentence, each.site)):
        heading = f"sentence {sentence}, {SITE_NAMES[site]}-attention in percent"
        waiting: list[list[str]] = []
        rows = []
        for lines in map(block, group):
            if waiting and _columns([*waiting, lines]) > columns:
                rows.append(_beside(waiting))
                waiting = []
            waiting.append(lines)
        parts.append("\n".join([heading, "\n\n".join([*rows, _beside(waiting)])]))
    return "\n\n".join(parts)


def _columns(blocks: Sequence[Sequence[str]]) -> int:
    return sum(max(map(width, lines)) for lines in blocks) + len(_GAP) * (len(blocks) - 1)


def _beside(blocks: Sequence[Sequence[str]]) -> str:
    sizes = [max(map(width, lines)) for lines in blocks]
    rows = zip_longest(*blocks, fillvalue="")
    return "\n".join(_GAP.join(left(c, size) for c, size in zip(row, sizes, strict=True)).rstrip() for row in rows)


def _percent(value: float) -> str:
    return _DOT if value == 0 else f"{value * 100:.0f}"


def report(maps: Sequence[NamedMap], pick: Pick) -> Report:
    """Every weight in a row. Positions count from 0; the stand-in is -1, as in the engine."""
    rows: list[tuple[Value, ...]] = []
    for each in maps:
        layer, head = each.part or (None, None)
        start = (each.sentence, each.model, SITE_NAMES[each.site], layer, head)
        for q, query in enumerate(each.rows):
            for c, key in enumerate(each.columns):
                place = c - 1 if each.stand_in else c
                rows.append((*start, q, query, place, key, int(each.dropped[c]), float(each.weights[q, c])))
    columns = (
        *(Column("sentence", "count"), Column("model"), Column("site")),
        *(Column("layer", "count"), Column("head", "count")),
        *(Column("query_position", "count"), Column("query"), Column("key_position", "count"), Column("key")),
        *(Column("dropped", "count"), Column("weight", "number")),
    )
    settings = {"site": pick.site, "layers": list(pick.layers), "heads": list(pick.heads), "apart": pick.apart}
    return Report("maps", (Table("maps", "attention", columns, tuple(rows)),), settings=settings)


def grid(maps: Sequence[NamedMap]) -> list[list[Heatmap]]:
    """For a plot: a line a sentence and head, a column a model; of one model, a line a sentence and layer."""
    several = len({each.model for each in maps}) > 1
    lines: dict[tuple[int, Part | int], list[Heatmap]] = {}
    for each in maps:
        site = ", " if each.site == "cross" else f"\n{SITE_NAMES[each.site]}, "
        title = f"{each.title}{site}sentence {each.sentence}"
        drawn = Heatmap(title, each.rows, each.columns, each.weights, each.dropped)
        part = each.part if several or each.part is None else each.part[0]
        lines.setdefault((each.sentence, part), []).append(drawn)
    most = max(map(len, lines.values()))  # a line that is empty to one of the models' tokenizers is not drawn
    return [line for line in lines.values() if len(line) == most]
