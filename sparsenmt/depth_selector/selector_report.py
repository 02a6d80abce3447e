"""The report on a depth selector: quality and time, the chosen depths, and the trials of the search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsenmt.depth_selector.evaluation import SelectorEvaluation, SystemScore
from sparsenmt.depth_selector.labels import LabelledSentences
from sparsenmt.depth_selector.training import Trial
from sparsenmt.model.depth_plan import Depth
from sparsenmt.report.tables import Column, Report, Table

_LAYERS = (Column("encoder_layers", "count"), Column("decoder_layers", "count"))


def selector_report(
    measured: SelectorEvaluation, held_out: LabelledSentences, depths: Sequence[Depth], trials: Sequence[Trial]
) -> Report:
    """Return the report.

    Args:
        held_out: the evaluated text.
        depths: K, in the order of the columns of its scores.
        trials: of the search.
    """
    tables = (_systems(measured), _chosen(measured, held_out, depths), _trials(trials))
    return Report("select-depth", tables, tuple(_notes(measured, held_out)))


def _systems(measured: SelectorEvaluation) -> Table:
    full = measured.full
    columns = (
        Column("system"),
        *_LAYERS,
        Column("bleu", "score"),
        Column("chrf", "score"),
        Column("sentence_chrf", "score"),
        Column("seconds_alone"),
        Column("alone_of_full", "share"),
        Column("seconds_grouped"),
        Column("grouped_of_full", "share"),
    )
    rows = []
    for each in measured.systems:
        n, m = each.depth or (None, None)
        quality = (each.bleu, each.chrf, each.sentence_chrf)
        alone = (each.seconds_alone, each.seconds_alone / full.seconds_alone)
        grouped = (each.seconds_grouped, each.seconds_grouped / full.seconds_grouped)
        rows.append((each.name, n, m, *quality, *alone, *grouped))
    numbers = {"seconds_alone", "seconds_grouped"}
    shown = tuple(Column(each.name, "number") if each.name in numbers else each for each in columns)
    return Table("systems", f"Held-out text; times of its first {measured.timed:,} sentences", shown, tuple(rows))


def _chosen(measured: SelectorEvaluation, held_out: LabelledSentences, depths: Sequence[Depth]) -> Table:
    columns = (*_LAYERS, Column("selector", "share"), Column("oracle", "share"), Column("among_the_best", "share"))
    best = held_out.prior
    shares = [np.bincount(each, minlength=len(depths)) / len(held_out) for each in (measured.selected, measured.oracle)]
    rows = [(n, m, float(shares[0][k]), float(shares[1][k]), float(best[k])) for k, (n, m) in enumerate(depths)]
    return Table("depths", "Sentences at each depth", columns, tuple(rows))


def _trials(trials: Sequence[Trial]) -> Table:
    columns = (
        Column("layers", "count"),
        Column("heads", "count"),
        Column("alpha", "number"),
        Column("beta", "number"),
        Column("lambda", "number"),
        Column("epoch", "count"),
        Column("own_loss", "number"),
        Column("loss", "number"),
        Column("chrf", "score"),
    )
    rows = tuple(
        (
            each.cell.layers,
            each.cell.heads,
            each.cell.alpha,
            each.cell.beta,
            each.cell.weight,
            each.epoch,
            each.own_loss,
            each.loss,
            each.chrf,
        )
        for each in sorted(trials, key=lambda trial: trial.loss)
    )
    return Table("search", "Trials of the search, on the validation set, the chosen one first", columns, rows)


def _notes(measured: SelectorEvaluation, held_out: LabelledSentences) -> list[str]:
    """Return the notes below the tables."""
    own, full = measured.selector, measured.full
    hits = float(held_out.labels[np.arange(len(held_out)), measured.selected].mean())
    notes = [
        f"held-out sentences: {len(held_out):,}; in {hits:.1%} the chosen depth is among the best; "
        f"for {measured.undecided:.1%} no depth reaches a probability of 0.5, and the full depth is taken",
        f"the selector takes {own.seconds_alone / full.seconds_alone:.1%} of the full depth's time one by one, "
        f"{own.seconds_grouped / full.seconds_grouped:.1%} in groups, itself included "
        f"({1000 * measured.choosing / measured.timed:.2f} ms a sentence); "
        f"BLEU {own.bleu - full.bleu:+.2f}, chrF {own.chrf - full.chrf:+.2f}",
    ]
    better = measured.better_fixed()
    if better:
        notes.append(f"fixed depths that are as good as the selector in no more time: {_named(better)}")
    else:
        notes.append("no fixed depth is as good as the selector in no more time")
    return notes


def _named(systems: Sequence[SystemScore]) -> str:
    return ", ".join(f"({each.depth[0]}, {each.depth[1]})" for each in systems if each.depth is not None)
