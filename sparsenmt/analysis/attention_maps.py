"""Attention maps of single sentences, several models side by side (Zhang, Titov and Sennrich 2021, Fig. 2; Correia,
Niculae and Martins 2019, Fig. 7 to 10).

At cross-attention, dropped words get nothing: the weight of their stand-in vector has a column of its own. Nothing is
compacted, so the weights of the positions whose gate is 0 together are the stand-in's. At self-attention, rows and
columns are the tokens that the stack reads: the decoder begins with ``<s>``, one token behind its output.
Shapes: Q queries, K keys, C columns of a map: K, and before them the stand-in if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, zeros_like

from sparsenmt.analysis.gates import GatedLine
from sparsenmt.analysis.labels import SITE_NAMES, head_name, shown_tokens, site_title
from sparsenmt.analysis.observe import Attended, TargetLine
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession, AnalyzedModel
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import UserError, printable
from sparsenmt.model.sites import SiteName
from sparsenmt.report.columns import aligned, left, right, width
from sparsenmt.report.plots import Heatmap, heatmaps
from sparsenmt.report.tables import Report, Table, columns

STAND_IN = "(dropped)"
MOST_MAPS = 64
"""Maps that one picture can hold."""
_SIDES: dict[SiteName, tuple[str, str]] = {
    "encoder_self": ("source", "source"),
    "decoder_self": ("target", "target"),
    "cross": ("target", "source"),
}
"""The side of the rows, and that of the columns."""
_DOT = "·"  # a weight of exactly 0
_GAP = "   "  # between maps that stand side by side


@dataclass(frozen=True)
class MapChoice:
    """The attention that maps show: by default cross-attention, averaged over all heads and layers.

    Args:
        layers: from 1; empty: all.
        heads: from 1; empty: all.
        apart: True: one map for every head of every layer; False: their mean.
    """

    site: SiteName = "cross"
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    apart: bool = False


DEFAULT = MapChoice()


def measure_attention_maps(
    session: AnalysisSession, choice: MapChoice = DEFAULT, *, terminal_width: int = 120
) -> AnalysisResult:
    """Make the report ``maps``.

    Args:
        terminal_width: width of the text, in terminal columns.

    Raises:
        UserError: a model has no such layer or head, or a picture cannot hold all maps.
    """
    notes = session.notes_on_filters(needed=False)
    session.check_drawable(len(session.lines))
    maps = []
    for model in session.opened():
        check_choice(model, choice)
        targets = model.targets
        seen = model.attend(ChosenAttention(choice), [choice.site], targets)
        maps += sentence_maps(model.label, model.gates, targets, seen, choice, model.bundle.tokenizers)
    sums = session.notes_on_weights("they are shown as they are")
    maps.sort(key=lambda each: each.sentence)  # models and heads stay in their order
    session.check_drawable(len(maps), "maps", most=MOST_MAPS, hint="with --layer, --head, --limit or --sentence")
    shown = "\n".join([*(notes if choice.site == "cross" else []), *sums])
    parts = [text(maps, terminal_width), *filter(None, [shown])]
    return session.result(
        report(maps, choice),
        lambda: heatmaps(grid(maps), "attention weight"),
        notes=notes + sums,
        text="\n\n".join(parts),
    )


def check_choice(model: AnalyzedModel, choice: MapChoice) -> None:
    """Raise UserError for layers and heads that a model does not have."""
    depth = model.bundle.depth
    side, count = ("encoder", depth[0]) if choice.site == "encoder_self" else ("decoder", depth[1])
    if choice.layers and max(choice.layers) > count:
        what = f"{model.label} has {count} {side} layer{'' if count == 1 else 's'}, not {max(choice.layers)}"
        raise UserError(what, where="--layer", hint="Name a layer that the model has.")
    model.check_heads(choice.site, choice.heads)


Part = tuple[int, int] | None
"""Layer and head, from 1; None: the mean of the chosen heads."""


class ChosenAttention:
    """An observer (`observe.observe`) that keeps the maps of a few sentences."""

    def __init__(self, choice: MapChoice) -> None:
        self._choice = choice
        self._sums: dict[tuple[int, Part], tuple[int, Tensor]] = {}  # number and sum of maps (Q, K), by sentence

    def __call__(self, seen: Attended) -> None:
        choice = self._choice
        if seen.site != choice.site or (choice.layers and seen.layer not in choice.layers):
            return
        heads = choice.heads or tuple(range(1, seen.weights.shape[1] + 1))
        for head in heads:
            part = (seen.layer, head) if choice.apart else None
            weights = seen.weights[:, head - 1].double()
            for row, place in enumerate(seen.places):
                count, total = self._sums.get((place, part), (0, zeros_like(weights[row])))
                self._sums[place, part] = count + 1, total + weights[row]

    def parts(self) -> list[Part]:
        """Return the parts that every sentence has, by layer and head."""
        return sorted({part for _, part in self._sums}, key=lambda part: part or (0, 0))

    def weights(self, place: int, part: Part, queries: int, keys: int) -> NDArray[np.float64]:
        """Return the weights of a part of a sentence without padding, (Q, K); ``place``: its index in the text."""
        count, total = self._sums[place, part]
        found: NDArray[np.float64] = (total[:queries, :keys] / count).cpu().numpy()
        return found


@dataclass(frozen=True)
class SentenceMap:
    """One model's map of one sentence."""

    sentence: int
    """The line of the input, from 1."""
    model: str
    site: SiteName
    part: Part
    rows: list[str]
    """(Q,) tokens of the queries."""
    columns: list[str]
    """(C,) tokens of the keys."""
    dropped: list[bool]
    """(C,) True where a filter has closed the key."""
    weights: NDArray[np.float64]
    """(Q, C), from 0 to 1."""
    stand_in: bool
    """True if the first column is the stand-in."""

    @property
    def title(self) -> str:
        """The model, and the head if the map is that of one."""
        return self.model if self.part is None else f"{self.model}, head {head_name(*self.part)}"


def sentence_maps(
    model: str,
    lines: Sequence[GatedLine],
    targets: Sequence[TargetLine],
    seen: ChosenAttention,
    choice: MapChoice,
    tokenizers: Tokenizers,
) -> list[SentenceMap]:
    """Return all maps of a model, sentence by sentence, head by head.

    Args:
        targets: those of the lines; not read for the encoder's self-attention.
    """
    found = []
    for place, line in enumerate(lines):
        rows = columns = shown_tokens(line.line.token_names(tokenizers.source))
        if choice.site != "encoder_self":
            target = targets[place]
            ids = target.ids if choice.site == "cross" else target.inputs[: len(target.ids)]
            rows = shown_tokens(tokenizers.target.pieces(ids, target.unknown))
            columns = columns if choice.site == "cross" else rows
        for part in seen.parts():
            weights = seen.weights(place, part, len(rows), len(columns))
            number = line.line.number + 1
            kept = [False] * len(columns)
            whole = SentenceMap(number, model, choice.site, part, rows, columns, kept, weights, stand_in=False)
            found.append(_with_stand_in(whole, line.dropped) if choice.site == "cross" else whole)
    return found


def _with_stand_in(whole: SentenceMap, dropped: NDArray[np.bool_]) -> SentenceMap:
    """Move the mass of dropped columns to a column of the stand-in, if any are dropped."""
    if not dropped.any():
        return whole
    mass = whole.weights[:, dropped].sum(1, keepdims=True)
    weights = np.concatenate([mass, np.where(dropped, 0.0, whole.weights)], 1)
    columns, flags = [STAND_IN, *whole.columns], [False, *dropped.tolist()]
    return replace(whole, columns=columns, dropped=flags, weights=weights, stand_in=True)


def block(each: SentenceMap) -> list[str]:
    """Return the lines of a map as text: percent, a dot for exactly 0, dropped words in brackets."""
    heads = [f"[{name}]" if dropped else name for name, dropped in zip(each.columns, each.dropped, strict=True)]
    sizes = [max(width(head), 3) for head in heads]
    side = max([width(name) for name in each.rows], default=0)
    cells = [[_DOT if value == 0 else f"{value * 100:.0f}" for value in row] for row in each.weights.tolist()]
    rows = [heads, *cells]
    lines = [
        f"{left(name, side)}  {' '.join(right(cell, size) for cell, size in zip(row, sizes, strict=True))}"
        for name, row in zip(["", *each.rows], rows, strict=True)
    ]
    return [printable(each.title), *lines]


def text(maps: Sequence[SentenceMap], terminal_width: int) -> str:
    """Return maps as text, sentence by sentence, as many side by side as fit into the columns of a terminal."""
    parts: list[str] = []
    for (sentence, site), group in groupby(maps, key=lambda each: (each.sentence, each.site)):
        heading = f"sentence {sentence}, {site_title(site)} in percent"
        waiting: list[list[str]] = []
        rows = []
        for lines in map(block, group):
            if waiting and _columns([*waiting, lines]) > terminal_width:
                rows.append(_beside(waiting))
                waiting = []
            waiting.append(lines)
        parts.append("\n".join([heading, "\n\n".join([*rows, _beside(waiting)])]))
    return "\n\n".join(parts)


def _columns(blocks: Sequence[Sequence[str]]) -> int:
    """Return the terminal columns of maps side by side."""
    return sum(max(map(width, lines)) for lines in blocks) + len(_GAP) * (len(blocks) - 1)


def _beside(blocks: Sequence[Sequence[str]]) -> str:
    """Put maps, given as lines, side by side."""
    return "\n".join(aligned(list(zip_longest(*blocks, fillvalue="")), gap=_GAP))


def report(maps: Sequence[SentenceMap], choice: MapChoice) -> Report:
    """Make the table: one row for each weight. Positions count from 0; the stand-in has position -1."""
    rows = []
    for each in maps:
        layer, head = each.part or (None, None)
        start = (each.sentence, each.model, SITE_NAMES[each.site], layer, head)
        for q, query in enumerate(each.rows):
            for c, key in enumerate(each.columns):
                position = c - 1 if each.stand_in else c
                rows.append((*start, q, query, position, key, int(each.dropped[c]), float(each.weights[q, c])))
    place = ("count sentence", "text model site", "count layer head")
    cell = ("count query_position", "text query", "count key_position", "text key", "count dropped", "number weight")
    table = Table("maps", f"{site_title(choice.site)} of sentences", columns(*place, *cell), rows)
    chosen = {"layers": list(choice.layers), "heads": list(choice.heads), "apart": choice.apart}
    return Report("maps", (table,), settings={"site": choice.site, **chosen})


def grid(maps: Sequence[SentenceMap]) -> list[list[Heatmap]]:
    """Draw one line for each sentence and head, one column for each model; of one model, one line for each layer."""
    several = len({each.model for each in maps}) > 1
    lines: dict[tuple[int, Part | int], list[Heatmap]] = {}
    for each in maps:
        site = ", " if each.site == "cross" else f"\n{SITE_NAMES[each.site]}, "
        title = f"{each.title}{site}sentence {each.sentence}"
        rows, keys = _SIDES[each.site]
        row, column = f"{rows} tokens (queries)", f"{keys} tokens (keys)"
        drawn = Heatmap(title, each.rows, each.columns, each.weights, each.dropped, row_label=row, column_label=column)
        part = each.part if several or each.part is None else each.part[0]
        lines.setdefault((each.sentence, part), []).append(drawn)
    most = max(map(len, lines.values()))  # a line that is empty to one of the models' tokenizers is not drawn
    return [line for line in lines.values() if len(line) == most]
