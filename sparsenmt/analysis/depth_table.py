"""Quality and time of translations at every depth, as tables and as heat maps (Dabre, Rubino and Fujita 2020).

A *grid* is a block of the paper's Tables 1 and 3: one system (a model, or a set of separately trained models) with one
search; a *cell* is the grid at n encoder and m decoder layers. Time is relative to one cell, all measured in one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from sparsenmt.evaluation.depth_oracle import chosen_lines, oracle_depths, sentence_chrf
from sparsenmt.evaluation.metrics import Score, corpus_scores
from sparsenmt.evaluation.scorer import ScoringOptions, ScoringSettings
from sparsenmt.metric import METRICS
from sparsenmt.model.depth_plan import Depth, fastest_first
from sparsenmt.report.plots import ValueMap
from sparsenmt.report.tables import Report, Table, Value, columns, shown_if

DEFAULT = ScoringOptions(("bleu", "chrf"))


@dataclass(frozen=True)
class TranslatedText:
    """A text translated at a depth.

    Args:
        lines: the translations.
        model: directory of the model.
        file: file of the translations.
        seconds: decoding time of the timed lines; None: not measured.
        spread: excess time of the slowest turn over the fastest, as a share of it; None: not measured, or in one turn.
    """

    lines: Sequence[str]
    model: str
    file: str
    seconds: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class DepthScore:
    """A cell: one grid at one depth.

    Args:
        scores: metric -> score.
        oracle: number of sentences whose best translation is of this depth.
    """

    depth: Depth
    text: TranslatedText
    scores: Mapping[str, float]
    oracle: int


@dataclass(frozen=True)
class DepthGrid:
    """One system with one search, at every depth.

    Args:
        cells: the fastest first.
        oracle: metric -> corpus score of the oracle, which takes the translation with the best chrF of each sentence.
        depths: (S, 2) depth that the oracle takes for each of S sentences.
        oracle_seconds: decoding time of the timed lines, each at the oracle's depth; None: not measured.
        lowercase: True if scores and oracle ignore case.
    """

    system: str
    search: str
    cells: tuple[DepthScore, ...]
    oracle: Mapping[str, Score]
    depths: NDArray[np.int64]
    lowercase: bool = False
    oracle_seconds: float | None = None

    def timed(self, times: Mapping[Depth, tuple[float, float | None]], oracle: float) -> DepthGrid:
        """Return the grid with decoding seconds and their spread, by depth, and the seconds of the oracle."""
        cells = []
        for cell in self.cells:
            seconds, spread = times[cell.depth]
            cells.append(replace(cell, text=replace(cell.text, seconds=seconds, spread=spread)))
        return replace(self, cells=tuple(cells), oracle_seconds=oracle)

    @property
    def name(self) -> str:
        """The system and its search."""
        return f"{self.system}, {self.search}"

    @property
    def deepest(self) -> DepthScore:
        """The cell of the most layers."""
        return self.cells[-1]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics, the most important first."""
        return tuple(self.oracle)

    @property
    def best(self) -> DepthScore:
        """The cell that is best by the first metric; the fastest of equal ones."""
        first = self.metrics[0]
        sign = -1 if METRICS[first].lower_is_better else 1
        return max(self.cells, key=lambda cell: sign * cell.scores[first])


def score_grid(
    system: str,
    search: str,
    translations: Mapping[Depth, TranslatedText],
    references: Sequence[str],
    settings: ScoringSettings,
    *,
    advance: Callable[[int], object] = lambda cells: None,
) -> DepthGrid:
    """Score the translations of one system with one search.

    Args:
        translations: one text for each depth.
        settings: of the scores; the oracle's chrF ignores case where they do.
        advance: called with 1 after every cell.
    """
    depths = fastest_first(translations)
    lines = [translations[depth].lines for depth in depths]
    chosen = oracle_depths(sentence_chrf(lines, references, lowercase=settings.lowercase))
    counts = Counter(chosen.tolist())
    cells = []
    for number, depth in enumerate(depths):
        scores = {score.name: score.value for score in corpus_scores(lines[number], [references], settings)}
        cells.append(DepthScore(depth, translations[depth], scores, counts[number]))
        advance(1)
    best = corpus_scores(chosen_lines(lines, chosen), [references], settings)
    taken = np.array(depths, dtype=np.int64)[chosen]
    return DepthGrid(system, search, tuple(cells), {score.name: score for score in best}, taken, settings.lowercase)


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

    def ratio(self, seconds: float | None) -> float | None:
        """Return a time relative to the reference; None if it was not measured."""
        return None if seconds is None else seconds / self.seconds


@dataclass(frozen=True)
class SystemSize:
    """One system: a model with all its depths, or separately trained models.

    Args:
        models: number of models.
        parameters: of all models.
        training: seconds of all trainings by their logs; None: a model has no log.
        deepest_training: seconds of the training of the deepest model.
        separate: True if each depth has a model of its own.
    """

    system: str
    models: int
    parameters: int
    training: float | None
    deepest_training: float | None
    separate: bool


def report(
    text: str, grids: Sequence[DepthGrid], timed: TimeReference | None, sizes: Sequence[SystemSize] = ()
) -> Report:
    """Return the report: for files all cells as one table, for a terminal one for each measure; of grids, and systems.

    On the terminal encoder layers stand downwards, and decoder layers across.

    Args:
        text: the name of the text.
        timed: the reference of relative times; None where no time was measured.
        sizes: of the systems.
    """
    cells, count = [], len(grids[0].depths)
    for grid in grids:
        for cell in grid.cells:
            ratio = None if timed is None else timed.ratio(cell.text.seconds)
            share = cell.oracle / len(grid.depths)
            measured = (*cell.scores.values(), ratio, cell.text.seconds, cell.text.spread, cell.oracle, share)
            cells.append((grid.system, grid.search, *cell.depth, *measured, cell.text.model, cell.text.file))
    place = ("text system search", "count encoder_layers decoder_layers")
    oracle = ("count oracle_sentences", "share oracle_share")
    scores = f"score {' '.join(grids[0].metrics)}"
    heads = columns(*place, scores, "number relative_time seconds", "share spread", *oracle, "text model translations")
    titles = {metric: f"{METRICS[metric].label}, {text}, {count:,} sentences" for metric in grids[0].metrics}
    titles |= {} if timed is None else {"time": "decoding time, relative"}
    titles["oracle"] = "share of sentences whose translation is the oracle's"
    views = [_view(grids, measure, title, timed) for measure, title in titles.items()]
    tables = (Table("cells", text, heads, cells, listed=False), *views, _grids(grids, timed), *_sizes(sizes))
    return Report("depths", tables, tuple(_notes(grids, timed)), {"text": text, "sentences": count})


def _value(measure: str, cell: DepthScore, grid: DepthGrid, timed: TimeReference | None) -> float | None:
    """Return a cell's score by a metric, relative "time", or share of sentences of the "oracle"; None: not measured."""
    if measure == "time":
        return None if timed is None else timed.ratio(cell.text.seconds)
    return cell.oracle / len(grid.depths) if measure == "oracle" else cell.scores[measure]


def _view(grids: Sequence[DepthGrid], measure: str, title: str, timed: TimeReference | None) -> Table:
    """Return the terminal's table of a measure (`_value`): encoder layers down, decoder layers across."""
    rows = []
    for grid in grids:
        for cell in sorted(grid.cells, key=lambda cell: cell.depth):
            n, m = cell.depth
            rows.append((grid.system, grid.search, str(n), f"m = {m}", _value(measure, cell, grid, timed)))
    heads = columns("text system search n decoder", f"{'share' if measure == 'oracle' else 'score'} {measure}")
    return Table(measure, title, heads, rows, across="decoder", shown=measure, filed=False)


def _grids(grids: Sequence[DepthGrid], timed: TimeReference | None) -> Table:
    """Return the table of the deepest cell, the best cell and the oracle of every grid."""
    rows: list[tuple[Value, ...]] = []
    first = grids[0].metrics[0]
    for grid in grids:
        ratio = None if timed is None else timed.ratio(grid.oracle_seconds)
        oracle = (*(score.value for score in grid.oracle.values()), *map(float, grid.depths.mean(axis=0)), ratio)
        depths = [(f"{cell.depth[0]}+{cell.depth[1]}", cell.scores[first]) for cell in (grid.deepest, grid.best)]
        rows.append((grid.system, grid.search, *depths[0], *depths[1], *oracle))
    of_oracle = " ".join(f"oracle_{name}" for name in (*grids[0].metrics, "n", "m"))
    deepest, best = (("text " + name, f"score {name}_{first}") for name in ("deepest", "best"))
    time = shown_if(timed is not None, "score oracle_time")
    heads = columns("text system search", *deepest, *best, f"score {of_oracle}", time)
    return Table("blocks", "deepest and best depth, and the oracle", heads, rows)


def _sizes(sizes: Sequence[SystemSize]) -> list[Table]:
    """Return the table of sizes and training times of systems (Table 4); empty without systems."""
    if not sizes:
        return []
    separate = [each for each in sizes if each.separate and each.deepest_training is not None]
    one = separate[0].deepest_training if separate else sizes[0].training
    rows: list[tuple[Value, ...]] = []
    for each in sizes:
        ratio = each.training / one if each.training is not None and one else None
        relative = each.parameters / sizes[0].parameters
        rows.append((each.system, each.models, each.parameters, relative, each.training, ratio))
    time = ("rate training_seconds", "score relative_training")
    heads = columns("text system", "count models parameters", "score relative_size", *time)
    to = f"the deepest of {separate[0].system}" if separate else sizes[0].system
    title = f"size, relative to {sizes[0].system}, and training time, relative to {to}"
    return [Table("systems", title, heads, rows)]


def _notes(grids: Sequence[DepthGrid], timed: TimeReference | None) -> Iterator[str]:
    """Yield the notes that explain the numbers."""
    yield "n: encoder layers, m: decoder layers"
    chrf = "chrF without case" if grids[0].lowercase else "chrF"
    yield f"oracle: of each sentence the depth with the best sentence-level {chrf}; of equals the least m, then least n"
    if timed is not None:
        n, m = timed.depth
        yield (
            f"time: start-up excluded, all in one run, fastest turn; 1 is {timed.grid} at {n}+{m}: "
            f"{timed.seconds:.2f} s for {timed.lines:,} lines"
        )
        yield "oracle time: the lines of each depth together, without the choice"
        spreads = [cell.text.spread for grid in grids for cell in grid.cells if cell.text.spread is not None]
        if spreads:
            yield (
                f"slowest turn of a depth over its fastest: {median(spreads):+.1%} (median), {max(spreads):+.1%} at "
                "most; depths whose times differ by less are equal"
            )
    yield from (f"{METRICS[metric].label}: {score.signature}" for metric, score in grids[0].oracle.items())


def heat_maps(grids: Sequence[DepthGrid], timed: TimeReference | None) -> list[list[ValueMap]]:
    """Return the heat maps of a plot: a row for each grid; each measure has one scale for all grids."""
    measures = {metric: (METRICS[metric].label, ".1f") for metric in grids[0].metrics}
    measures |= {} if timed is None else {"time": ("relative decoding time", ".2f")}
    measures |= {"oracle": ("oracle's share of sentences", ".1%")}
    found = {(grid.name, name): _matrix(grid, name, timed) for grid in grids for name in measures}
    ends = {}
    for name in measures:
        known = np.concatenate([values[~np.isnan(values)] for (_, each), values in found.items() if each == name])
        ends[name] = _ends(name, float(known.min()), float(known.max()))
    lines: list[list[ValueMap]] = [[] for _ in grids]
    for grid, line in zip(grids, lines, strict=True):
        n, m = _axes(grid)
        for name, (label, form) in measures.items():
            title, values = f"{grid.name}\n{label}", found[grid.name, name]
            line.append(ValueMap(title, "encoder layers n", n, "decoder layers m", m, values, form, ends[name]))
    return lines


def _ends(measure: str, least: float, most: float) -> tuple[float, float]:
    """Return the ends of a scale of colours of values from ``least`` to ``most``, so far apart that noise is unseen."""
    if measure == "oracle":
        return 0.0, max(most, 0.2)
    span = {"time": 0.5, "length": 0.1}.get(measure, 2.0)  # scores: of 100
    missing = max(span - (most - least), 0.0)
    low = max(least - missing / 2, 0.0)
    return low, max(most + missing / 2, low + span)


def _axes(grid: DepthGrid) -> tuple[list[str], list[str]]:
    """Return the numbers of encoder layers and of decoder layers of a grid, rising, as labels."""
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
