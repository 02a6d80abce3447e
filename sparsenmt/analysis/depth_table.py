"""Quality and time of translations at every depth, as tables and as heat maps (Dabre, Rubino and Fujita 2020).

A *block* is what the paper's Tables 1 and 3 call one: one model, or one grid of models, with one search; a *cell* is a
block at n encoder and m decoder layers. Time is relative to that of one cell, all measured in one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparsenmt.evaluation.depth_oracle import chosen_lines, oracle_depths, sentence_chrf
from sparsenmt.evaluation.metrics import Score, corpus_scores
from sparsenmt.evaluation.names import LABELS
from sparsenmt.model.depth_plan import Depth, fastest_first
from sparsenmt.report.tables import Column, Report, Table, Value

if TYPE_CHECKING:
    from sparsenmt.report.plots import ValueMap

METRICS = ("bleu", "chrf")


@dataclass(frozen=True)
class Translated:
    """A text translated at a depth.

    Args:
        model: its directory.
        file: of the translations.
        seconds: that a part of the text took; None: not measured.
    """

    lines: Sequence[str]
    model: str
    file: str
    seconds: float | None = None


@dataclass(frozen=True)
class DepthScore:
    """One block at one depth.

    Args:
        oracle: sentences whose best translation is of this depth.
    """

    depth: Depth
    made: Translated
    bleu: float
    chrf: float
    oracle: int

    @property
    def seconds(self) -> float | None:
        return self.made.seconds


@dataclass(frozen=True)
class DepthGrid:
    """One model, or one grid of models, with one search.

    Args:
        cells: the fastest first.
        oracle: scores of the translations that are best by chrF.
        depths: (S, 2): the depth of each sentence's best translation.
    """

    system: str
    search: str
    cells: tuple[DepthScore, ...]
    oracle: Mapping[str, Score]
    depths: NDArray[np.int64]

    @property
    def name(self) -> str:
        return f"{self.system}, {self.search}"

    @property
    def deepest(self) -> DepthScore:
        return self.cells[-1]

    @property
    def best(self) -> DepthScore:
        """By BLEU; of several the fastest."""
        return max(self.cells, key=lambda cell: cell.bleu)


def measure(
    system: str,
    search: str,
    translations: Mapping[Depth, Translated],
    references: Sequence[str],
    *,
    advance: Callable[[int], object] = lambda cells: None,
) -> DepthGrid:
    """Score a block, given by depth.

    Args:
        advance: told the number of cells that were scored.
    """
    depths = fastest_first(translations)
    lines = [translations[depth].lines for depth in depths]
    chosen = oracle_depths(sentence_chrf(lines, references))
    counts = Counter(chosen.tolist())
    cells = []
    for number, depth in enumerate(depths):
        bleu, chrf = corpus_scores(lines[number], [references], metrics=METRICS)
        cells.append(DepthScore(depth, translations[depth], bleu.value, chrf.value, counts[number]))
        advance(1)
    best = corpus_scores(chosen_lines(lines, chosen), [references], metrics=METRICS)
    taken = np.array(depths, dtype=np.int64)[chosen]
    return DepthGrid(system, search, tuple(cells), {score.name: score for score in best}, taken)


@dataclass(frozen=True)
class TimeReference:
    """The cell whose time the others are relative to."""

    block: str
    depth: Depth
    seconds: float
    lines: int
    """That were translated, of every cell."""

    def ratio(self, cell: DepthScore) -> float | None:
        return None if cell.seconds is None else cell.seconds / self.seconds


def report(text: str, blocks: Sequence[DepthGrid], timed: TimeReference | None) -> Report:
    """Everything, for files: a row a cell; a row a block.

    Args:
        text: its name.
        timed: None where no time was measured.
    """
    cells: list[tuple[Value, ...]] = []
    for block in blocks:
        for cell in block.cells:
            ratio = None if timed is None else timed.ratio(cell)
            share = cell.oracle / len(block.depths)
            scores = (cell.bleu, cell.chrf, ratio, cell.seconds, cell.oracle, share)
            cells.append((block.system, block.search, *cell.depth, *scores, cell.made.model, cell.made.file))
    columns = (
        *(Column("system"), Column("search"), Column("encoder_layers", "count"), Column("decoder_layers", "count")),
        *(Column("bleu", "score"), Column("chrf", "score"), Column("relative_time", "number")),
        *(Column("seconds", "number"), Column("oracle_sentences", "count"), Column("oracle_share", "share")),
        *(Column("model"), Column("translations")),
    )
    tables = (Table("cells", text, columns, tuple(cells)), _blocks(blocks))
    return Report("depths", tables, tuple(_notes(blocks, timed)), {"text": text, "sentences": len(blocks[0].depths)})


def views(text: str, blocks: Sequence[DepthGrid], timed: TimeReference | None) -> Report:
    """The same for a terminal: a table a measure, encoder layers downwards, decoder layers across."""
    sentences = f"{text}, {len(blocks[0].depths):,} sentences"
    tables = [_view(blocks, metric, f"{LABELS[metric]}, {sentences}") for metric in METRICS]
    if timed is not None:
        tables.append(_view(blocks, "time", "decoding time, relative", timed))
    tables.append(_view(blocks, "oracle", "share of sentences whose translation is the oracle's"))
    return Report("depths", (*tables, _blocks(blocks)), tuple(_notes(blocks, timed)))


def _value(measure: str, cell: DepthScore, block: DepthGrid, timed: TimeReference | None) -> float | None:
    if measure == "time":
        return None if timed is None else timed.ratio(cell)
    return cell.oracle / len(block.depths) if measure == "oracle" else float(getattr(cell, measure))


def _view(blocks: Sequence[DepthGrid], measure: str, title: str, timed: TimeReference | None = None) -> Table:
    rows = []
    for block in blocks:
        for n, m in sorted(cell.depth for cell in block.cells):
            (cell,) = (cell for cell in block.cells if cell.depth == (n, m))
            value = _value(measure, cell, block, timed)
            rows.append((block.system, block.search, str(n), f"m = {m}", value))
    kind = Column(measure, "share" if measure == "oracle" else "score")
    columns = (Column("system"), Column("search"), Column("n"), Column("decoder"), kind)
    return Table(measure, title, columns, tuple(rows), across="decoder", shown=measure)


def _blocks(blocks: Sequence[DepthGrid]) -> Table:
    """The deepest cell, the best one and the oracle of every block."""
    rows: list[tuple[Value, ...]] = []
    for block in blocks:
        oracle = (block.oracle["bleu"].value, block.oracle["chrf"].value, *map(float, block.depths.mean(axis=0)))
        deep, best = block.deepest, block.best
        rows.append((block.system, block.search, _pair(deep), deep.bleu, _pair(best), best.bleu, *oracle))
    columns = (
        *(Column("system"), Column("search"), Column("deepest"), Column("deepest_bleu", "score")),
        *(Column("best"), Column("best_bleu", "score"), Column("oracle_bleu", "score")),
        *(Column("oracle_chrf", "score"), Column("oracle_n", "score"), Column("oracle_m", "score")),
    )
    return Table("blocks", "deepest and best depth, and the oracle", columns, tuple(rows))


def _pair(cell: DepthScore) -> str:
    return f"{cell.depth[0]}+{cell.depth[1]}"


def _notes(blocks: Sequence[DepthGrid], timed: TimeReference | None) -> Iterator[str]:
    """What the numbers are."""
    yield "n: encoder layers, m: decoder layers"
    yield "oracle: of each sentence the depth with the best sentence-level chrF; of equals the least m, then least n"
    if timed is not None:
        n, m = timed.depth
        yield (
            f"time: start-up excluded, all in one run, fastest turn; 1 is {timed.block} at {n}+{m}: "
            f"{timed.seconds:.2f} s for {timed.lines:,} lines"
        )
    yield from (f"{LABELS[metric]}: {blocks[0].oracle[metric].signature}" for metric in METRICS)


def maps(blocks: Sequence[DepthGrid], timed: TimeReference | None) -> list[list[ValueMap]]:
    """For a plot: a line a block; each measure on one scale for all blocks."""
    measures = {"bleu": (LABELS["bleu"], ".1f"), "chrf": (LABELS["chrf"], ".1f")}
    measures |= {} if timed is None else {"time": ("relative decoding time", ".2f")}
    measures |= {"oracle": ("oracle's share of sentences", ".1%")}
    found = {(block.name, name): _matrix(block, name, timed) for block in blocks for name in measures}
    ends = {}
    for name in measures:
        known = np.concatenate([values[~np.isnan(values)] for (_, each), values in found.items() if each == name])
        ends[name] = (0.0 if name == "oracle" else float(known.min()), float(known.max()))
    return [
        [_map(block, *measures[name], found[block.name, name], ends[name]) for name in measures] for block in blocks
    ]


def _map(block: DepthGrid, label: str, form: str, values: NDArray[np.float64], ends: tuple[float, float]) -> ValueMap:
    from sparsenmt.report.plots import ValueMap

    rows, columns = _axes(block)
    title = f"{block.name}\n{label}"
    return ValueMap(title, "encoder layers n", rows, "decoder layers m", columns, values, form, ends)


def _axes(block: DepthGrid) -> tuple[list[str], list[str]]:
    n, m = (sorted({cell.depth[side] for cell in block.cells}) for side in (0, 1))
    return list(map(str, n)), list(map(str, m))


def _matrix(block: DepthGrid, name: str, timed: TimeReference | None) -> NDArray[np.float64]:
    """(encoder layers, decoder layers); NaN where there is no cell."""
    rows, columns = _axes(block)
    values = np.full((len(rows), len(columns)), np.nan)
    for cell in block.cells:
        value = _value(name, cell, block, timed)
        if value is not None:
            values[rows.index(str(cell.depth[0])), columns.index(str(cell.depth[1]))] = value
    return values
