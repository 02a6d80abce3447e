"""Quality and time of translations at every depth, as tables and as heat maps (Dabre, Rubino and Fujita 2020).

A *grid* is a block of the paper's Tables 1 and 3: one system (a model, or a set of separately trained models) with one
search; a *cell* is the grid at n encoder and m decoder layers. Time is relative to one cell, all measured in one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.evaluation.depth_oracle import chosen_lines, oracle_depths, sentence_chrf
from sparsenmt.evaluation.metrics import Score, corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.metric import METRICS
from sparsenmt.model.depth_plan import Depth, fastest_first
from sparsenmt.report.plots import ValueMap
from sparsenmt.report.tables import Column, Report, Table, Value

_QUALITY = ("bleu", "chrf")


@dataclass(frozen=True)
class TranslatedText:
    """A text translated at a depth.

    Args:
        lines: the translations.
        model: directory of the model.
        file: file of the translations.
        seconds: decoding time of the timed lines; None: not measured.
    """

    lines: Sequence[str]
    model: str
    file: str
    seconds: float | None = None


@dataclass(frozen=True)
class DepthScore:
    """A cell: one grid at one depth.

    Args:
        oracle: number of sentences whose best translation is of this depth.
    """

    depth: Depth
    text: TranslatedText
    bleu: float
    chrf: float
    oracle: int

    @property
    def seconds(self) -> float | None:
        return self.text.seconds


@dataclass(frozen=True)
class DepthGrid:
    """One system with one search, at every depth.

    Args:
        cells: the fastest first.
        oracle: metric -> corpus score of the oracle, which takes the translation with the best chrF of each sentence.
        depths: (S, 2) depth that the oracle takes for each of S sentences.
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
        """The cell with the best BLEU; the fastest of equal ones."""
        return max(self.cells, key=lambda cell: cell.bleu)


def score_grid(
    system: str,
    search: str,
    translations: Mapping[Depth, TranslatedText],
    references: Sequence[str],
    *,
    advance: Callable[[int], object] = lambda cells: None,
) -> DepthGrid:
    """Score the translations of one system with one search.

    Args:
        translations: one text for each depth.
        advance: is told the number of cells that were scored.
    """
    depths = fastest_first(translations)
    lines = [translations[depth].lines for depth in depths]
    chosen = oracle_depths(sentence_chrf(lines, references))
    counts = Counter(chosen.tolist())
    cells = []
    for number, depth in enumerate(depths):
        bleu, chrf = corpus_scores(lines[number], [references], ScoringSettings(_QUALITY))
        cells.append(DepthScore(depth, translations[depth], bleu.value, chrf.value, counts[number]))
        advance(1)
    best = corpus_scores(chosen_lines(lines, chosen), [references], ScoringSettings(_QUALITY))
    taken = np.array(depths, dtype=np.int64)[chosen]
    return DepthGrid(system, search, tuple(cells), {score.name: score for score in best}, taken)


@dataclass(frozen=True)
class TimeReference:
    """The cell that times are relative to.

    Args:
        grid: name of the cell's grid.
        lines: number of lines that every cell was timed on.
    """

    grid: str
    depth: Depth
    seconds: float
    lines: int

    def ratio(self, cell: DepthScore) -> float | None:
        """Return the time of a cell relative to the reference; None if it was not measured."""
        return None if cell.seconds is None else cell.seconds / self.seconds


def full_report(text: str, grids: Sequence[DepthGrid], timed: TimeReference | None) -> Report:
    """Return the report for files: a table of cells and one of grids.

    Args:
        text: the name of the text.
        timed: the reference of relative times; None where no time was measured.
    """
    cells: list[tuple[Value, ...]] = []
    for grid in grids:
        for cell in grid.cells:
            ratio = None if timed is None else timed.ratio(cell)
            share = cell.oracle / len(grid.depths)
            scores = (cell.bleu, cell.chrf, ratio, cell.seconds, cell.oracle, share)
            cells.append((grid.system, grid.search, *cell.depth, *scores, cell.text.model, cell.text.file))
    columns = (
        *(Column("system"), Column("search"), Column("encoder_layers", "count"), Column("decoder_layers", "count")),
        *(Column("bleu", "score"), Column("chrf", "score"), Column("relative_time", "number")),
        *(Column("seconds", "number"), Column("oracle_sentences", "count"), Column("oracle_share", "share")),
        *(Column("model"), Column("translations")),
    )
    tables = (Table("cells", text, columns, tuple(cells)), _grids(grids))
    return Report("depths", tables, tuple(_notes(grids, timed)), {"text": text, "sentences": len(grids[0].depths)})


def printed_report(text: str, grids: Sequence[DepthGrid], timed: TimeReference | None) -> Report:
    """Return the report for a terminal: a table for each measure, encoder layers downwards, decoder layers across."""
    sentences = f"{text}, {len(grids[0].depths):,} sentences"
    tables = [_view(grids, metric, f"{METRICS[metric].label}, {sentences}") for metric in _QUALITY]
    if timed is not None:
        tables.append(_view(grids, "time", "decoding time, relative", timed))
    tables.append(_view(grids, "oracle", "share of sentences whose translation is the oracle's"))
    return Report("depths", (*tables, _grids(grids)), tuple(_notes(grids, timed)))


def _value(measure: str, cell: DepthScore, grid: DepthGrid, timed: TimeReference | None) -> float | None:
    if measure == "time":
        return None if timed is None else timed.ratio(cell)
    return cell.oracle / len(grid.depths) if measure == "oracle" else float(getattr(cell, measure))


def _view(grids: Sequence[DepthGrid], measure: str, title: str, timed: TimeReference | None = None) -> Table:
    rows = []
    for grid in grids:
        for n, m in sorted(cell.depth for cell in grid.cells):
            (cell,) = (cell for cell in grid.cells if cell.depth == (n, m))
            value = _value(measure, cell, grid, timed)
            rows.append((grid.system, grid.search, str(n), f"m = {m}", value))
    kind = Column(measure, "share" if measure == "oracle" else "score")
    columns = (Column("system"), Column("search"), Column("n"), Column("decoder"), kind)
    return Table(measure, title, columns, tuple(rows), across="decoder", shown=measure)


def _grids(grids: Sequence[DepthGrid]) -> Table:
    """Return the table of the deepest cell, the best cell and the oracle of every grid."""
    rows: list[tuple[Value, ...]] = []
    for grid in grids:
        oracle = (grid.oracle["bleu"].value, grid.oracle["chrf"].value, *map(float, grid.depths.mean(axis=0)))
        deep, best = grid.deepest, grid.best
        rows.append((grid.system, grid.search, _pair(deep), deep.bleu, _pair(best), best.bleu, *oracle))
    columns = (
        *(Column("system"), Column("search"), Column("deepest"), Column("deepest_bleu", "score")),
        *(Column("best"), Column("best_bleu", "score"), Column("oracle_bleu", "score")),
        *(Column("oracle_chrf", "score"), Column("oracle_n", "score"), Column("oracle_m", "score")),
    )
    return Table("blocks", "deepest and best depth, and the oracle", columns, tuple(rows))


def _pair(cell: DepthScore) -> str:
    return f"{cell.depth[0]}+{cell.depth[1]}"


def _notes(grids: Sequence[DepthGrid], timed: TimeReference | None) -> Iterator[str]:
    """Yield the notes that explain the numbers."""
    yield "n: encoder layers, m: decoder layers"
    yield "oracle: of each sentence the depth with the best sentence-level chrF; of equals the least m, then least n"
    if timed is not None:
        n, m = timed.depth
        yield (
            f"time: start-up excluded, all in one run, fastest turn; 1 is {timed.grid} at {n}+{m}: "
            f"{timed.seconds:.2f} s for {timed.lines:,} lines"
        )
    yield from (f"{METRICS[metric].label}: {grids[0].oracle[metric].signature}" for metric in _QUALITY)


def heat_maps(grids: Sequence[DepthGrid], timed: TimeReference | None) -> list[list[ValueMap]]:
    """Return the heat maps of a plot: a row for each grid; each measure has one scale for all grids."""
    measures = {"bleu": (METRICS["bleu"].label, ".1f"), "chrf": (METRICS["chrf"].label, ".1f")}
    measures |= {} if timed is None else {"time": ("relative decoding time", ".2f")}
    measures |= {"oracle": ("oracle's share of sentences", ".1%")}
    found = {(grid.name, name): _matrix(grid, name, timed) for grid in grids for name in measures}
    ends = {}
    for name in measures:
        known = np.concatenate([values[~np.isnan(values)] for (_, each), values in found.items() if each == name])
        ends[name] = (0.0 if name == "oracle" else float(known.min()), float(known.max()))
    return [[_map(grid, *measures[name], found[grid.name, name], ends[name]) for name in measures] for grid in grids]


def _map(grid: DepthGrid, label: str, form: str, values: NDArray[np.float64], ends: tuple[float, float]) -> ValueMap:
    rows, columns = _axes(grid)
    title = f"{grid.name}\n{label}"
    return ValueMap(title, "encoder layers n", rows, "decoder layers m", columns, values, form, ends)


def _axes(grid: DepthGrid) -> tuple[list[str], list[str]]:
    n, m = (sorted({cell.depth[side] for cell in grid.cells}) for side in (0, 1))
    return list(map(str, n)), list(map(str, m))


def _matrix(grid: DepthGrid, name: str, timed: TimeReference | None) -> NDArray[np.float64]:
    """Return the values by (encoder layers, decoder layers); NaN where there is no cell."""
    rows, columns = _axes(grid)
    values = np.full((len(rows), len(columns)), np.nan)
    for cell in grid.cells:
        value = _value(name, cell, grid, timed)
        if value is not None:
            values[rows.index(str(cell.depth[0])), columns.index(str(cell.depth[1]))] = value
    return values
