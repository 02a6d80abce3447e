"""The evaluation of a depth selector on held-out text, and its report: against every fixed depth and the oracle.

Shapes: S sentences, T of them timed, K depths, the fastest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.decoding_time import time_decoding
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.decoding.translate import translate_texts
from sparsenmt.depth_selector.labels import LabelledSentences
from sparsenmt.depth_selector.selector import Selector, translate_at_depths
from sparsenmt.depth_selector.training import Trial, choose, is_decided
from sparsenmt.evaluation.depth_oracle import chosen_lines, oracle_depths
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.metric import METRICS
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding
from sparsenmt.report.tables import Column, Report, Table, columns
from sparsenmt.store import Bundle

ROUNDS = 2
"""Rounds in which the text is translated in groups; the fastest counts."""


@dataclass(frozen=True)
class DepthTimes:
    """Seconds on the first T sentences.

    Args:
        alone: (T, K) for each sentence by itself, at each depth.
        choosing: (T) for the selector's choice.
        grouped: (K) for all sentences in batches, at each depth.
        grouped_selected: for all sentences in batches, each at the selected depth, the choice included.
        grouped_oracle: for all sentences in batches, each at the oracle's depth.
    """

    alone: NDArray[np.float64]
    choosing: NDArray[np.float64]
    grouped: NDArray[np.float64]
    grouped_selected: float
    grouped_oracle: float


@dataclass(frozen=True)
class SystemScore:
    """Quality of one way to choose depths on the whole text, and its time on the first sentences.

    Args:
        depth: of all sentences; None: each sentence has its own.
        sentence_chrf: mean over the sentences.
        seconds_alone: decoding one sentence after the other.
        seconds_grouped: decoding in batches.
    """

    name: str
    depth: Depth | None
    bleu: float
    chrf: float
    sentence_chrf: float
    seconds_alone: float
    seconds_grouped: float


@dataclass(frozen=True)
class SelectorEvaluation:
    """The scores of all systems.

    Args:
        systems: the fixed depths, the fastest first, then the selector, then the oracle.
        selected: (S) number of the selected depth.
        oracle: (S) number of the oracle's depth.
        choosing: seconds that the selector takes for the timed sentences, one after the other.
        timed: T.
        undecided: share of the sentences for which no probability reaches 0.5.
        signatures: metric -> signature.
    """

    systems: list[SystemScore]
    selected: NDArray[np.int64]
    oracle: NDArray[np.int64]
    choosing: float
    timed: int
    undecided: float
    signatures: dict[str, str]

    @property
    def full(self) -> SystemScore:
        return self.systems[-3]

    @property
    def selector(self) -> SystemScore:
        return self.systems[-2]

    def better_fixed(self) -> list[SystemScore]:
        """Return the fixed depths that are at least as good as the selector by both metrics, in no more time."""
        own = self.selector
        return [
            each
            for each in self.systems[:-2]
            if each.bleu >= own.bleu and each.chrf >= own.chrf and each.seconds_alone <= own.seconds_alone
        ]


def time_depths(
    bundle: Bundle,
    selector: Selector,
    lines: Sequence[str],
    oracle: Sequence[Depth],
    options: Decoding,
    *,
    advance: Callable[[int], object] | None = None,
) -> DepthTimes:
    """Time the lines one by one and in groups.

    One by one, every depth translates a sentence before the next sentence comes; in groups the depths take turns. The
    time of a selection is the sum over the chosen depths.

    Args:
        oracle: the oracle's depth of every line.
        advance: is told the number of lines that are translated, at each depth and in each round.
    """
    depths, count = list(selector.depths), len(lines)

    def choose(lines: Sequence[str]) -> list[Depth]:
        return selector.choose([source.ids for source in read_sources(bundle, input_lines(lines))])

    def translate(lines: Sequence[str], chosen: Sequence[Depth]) -> list[str]:
        return [each.text for each in translate_at_depths(bundle, input_lines(lines), chosen, options)]

    single = {k: partial(translate_texts, bundle, options=options.at(depth)) for k, depth in enumerate(depths)}
    single[len(depths) - 1](lines[:1])  # the first translation is slower than all others
    choose(lines[:1])
    alone, choosing = np.zeros((count, len(depths))), np.zeros(count)
    for i in range(count):
        line = lines[i : i + 1]
        times = time_decoding(single.items, line, warm_up=0, advance=advance)
        alone[i] = [times[k].seconds for k in single]
        choosing[i] = time_decoding(lambda: [(0, choose)], line, warm_up=0)[0].seconds
    groups: list[Callable[[Sequence[str]], list[str]]] = [
        *(partial(translate, chosen=[depth] * count) for depth in depths),
        lambda lines: translate(lines, choose(lines)),
        partial(translate, chosen=oracle),
    ]
    tell = advance or (lambda lines: None)
    grouped = time_decoding(
        lambda: enumerate(groups), lines, rounds=ROUNDS, warm_up=0, advance=lambda turns: tell(turns * count)
    )
    *fixed, selected, oracles = (grouped[k].seconds for k in range(len(groups)))
    return DepthTimes(alone, choosing, np.array(fixed), selected, oracles)


def timing_steps(lines: int, depths: int) -> int:
    """Return the sum of the numbers that `time_depths` tells ``advance``."""
    return lines * depths + ROUNDS * (depths + 2) * lines


def evaluate_selector(
    translations: Sequence[Sequence[str]],
    references: Sequence[str],
    scores: NDArray[np.float64],
    logits: Tensor,
    depths: Sequence[Depth],
    times: DepthTimes,
    *,
    language: str,
) -> SelectorEvaluation:
    """Score every fixed depth, the selector and the oracle.

    Args:
        translations: K lists of S lines.
        references: S lines.
        scores: (S, K) sentence-level chrF.
        logits: (S, K) of the selector.
        depths: K.
        times: of the first T sentences.
        language: code of the target language.
    """
    oracle, selected = oracle_depths(scores), choose(logits).cpu().numpy()

    def system(name: str, chosen: NDArray[np.int64], depth: Depth | None, alone: float, grouped: float) -> SystemScore:
        lines = chosen_lines(translations, chosen)
        bleu, chrf = corpus_scores(lines, [references], ScoringSettings(("bleu", "chrf"), language=language))
        signatures.update({score.name: score.signature for score in (bleu, chrf)})
        mean = float(scores[np.arange(len(chosen)), chosen].mean())
        return SystemScore(name, depth, bleu.value, chrf.value, mean, alone, grouped)

    count = len(times.choosing)

    def seconds(chosen: NDArray[np.int64]) -> float:
        return float(times.alone[np.arange(count), chosen[:count]].sum())

    systems, signatures = list[SystemScore](), dict[str, str]()
    for k, depth in enumerate(depths):
        name = "full depth" if k == len(depths) - 1 else "fixed depth"
        always = np.full(len(references), k)
        systems.append(system(name, always, depth, seconds(always), float(times.grouped[k])))
    choosing = float(times.choosing.sum())
    systems.append(system("selector", selected, None, seconds(selected) + choosing, times.grouped_selected))
    systems.append(system("oracle", oracle, None, seconds(oracle), times.grouped_oracle))
    undecided = 1 - float(is_decided(logits).float().mean())
    return SelectorEvaluation(systems, selected, oracle, choosing, count, undecided, signatures)


_LAYERS = columns("count encoder_layers decoder_layers")


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
    shown = (
        *(Column("system"), *_LAYERS, *columns("score bleu chrf sentence_chrf")),
        *(Column("seconds_alone", "number"), Column("alone_of_full", "share")),
        *(Column("seconds_grouped", "number"), Column("grouped_of_full", "share")),
    )
    rows = []
    for each in measured.systems:
        quality = (each.bleu, each.chrf, each.sentence_chrf)
        alone = (each.seconds_alone, each.seconds_alone / full.seconds_alone)
        grouped = (each.seconds_grouped, each.seconds_grouped / full.seconds_grouped)
        rows.append((each.name, *(each.depth or (None, None)), *quality, *alone, *grouped))
    return Table("systems", f"Held-out text; times of its first {measured.timed:,} sentences", shown, tuple(rows))


def _chosen(measured: SelectorEvaluation, held_out: LabelledSentences, depths: Sequence[Depth]) -> Table:
    shown = (*_LAYERS, *columns("share selector oracle among_the_best"))
    shares = [np.bincount(each, minlength=len(depths)) / len(held_out) for each in (measured.selected, measured.oracle)]
    shares.append(held_out.prior)
    rows = tuple((*depth, *(float(share[k]) for share in shares)) for k, depth in enumerate(depths))
    return Table("depths", "Sentences at each depth", shown, rows)


def _trials(trials: Sequence[Trial]) -> Table:
    shown = (
        *(*columns("count layers heads"), *columns("number alpha beta lambda")),
        *(Column("epoch", "count"), *columns("number own_loss loss"), Column("chrf", "score")),
    )
    ordered = sorted(trials, key=lambda trial: trial.loss)
    rows = tuple((*astuple(each.cell), each.epoch, each.own_loss, each.loss, each.chrf) for each in ordered)
    return Table("search", "Trials of the search, on the validation set, the chosen one first", shown, rows)


def _notes(measured: SelectorEvaluation, held_out: LabelledSentences) -> list[str]:
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
        depths = ", ".join(f"({each.depth[0]}, {each.depth[1]})" for each in better if each.depth is not None)
        notes.append(f"fixed depths that are as good as the selector in no more time: {depths}")
    else:
        notes.append("no fixed depth is as good as the selector in no more time")
    notes += [f"{METRICS[name].label}: {signature}" for name, signature in measured.signatures.items()]
    return notes
