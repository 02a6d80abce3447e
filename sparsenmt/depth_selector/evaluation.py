"""The evaluation of a depth selector on held-out text, and its report: against every fixed depth and the oracle.

Shapes: S sentences, T of them timed, K depths, the fastest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.decoding_time import time_decoding
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.decoding.translate import translate_texts
from sparsenmt.depth_selector.labels import LabelledSentences
from sparsenmt.depth_selector.selector import Selector, translate_at_depths
from sparsenmt.depth_selector.training import Trial, choose, is_decided
from sparsenmt.evaluation.depth_oracle import chosen_lines, oracle_depths
from sparsenmt.evaluation.metrics import Score, corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.metric import METRICS
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding
from sparsenmt.report.tables import Report, Table, Value, columns

QUALITY = ("bleu", "chrf")
ROUNDS = 2
"""Rounds in which the text is translated in groups; the fastest counts."""


@dataclass(frozen=True)
class DepthTimes:
    """Seconds on the first T sentences.

    Args:
        alone: (T, K) for each sentence by itself, at each depth.
        choosing: (T, C) for the choice of each classifier; the first is the selector.
        grouped: (K) for all sentences in batches, at each depth.
        grouped_selected: for all sentences in batches, each at the selected depth, the choice included.
        grouped_oracle: for all sentences in batches, each at the oracle's depth.
        grouped_spreads: (K + 2) of the times in batches: excess of the slowest round over the fastest.
    """

    alone: NDArray[np.float64]
    choosing: NDArray[np.float64]
    grouped: NDArray[np.float64]
    grouped_selected: float
    grouped_oracle: float
    grouped_spreads: NDArray[np.float64]


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
class MeasuredText:
    """Held-out text, translated at every depth.

    Args:
        translations: K lists of S lines.
        references: S lines.
        labelled: the sources, with (S, K) sentence-level chrF.
        depths: K.
        times: of the first T sentences.
        scoring: of BLEU and chrF.
    """

    translations: Sequence[Sequence[str]]
    references: Sequence[str]
    labelled: LabelledSentences
    depths: Sequence[Depth]
    times: DepthTimes
    scoring: ScoringSettings

    def corpus(self, chosen: NDArray[np.int64]) -> list[Score]:
        """Return BLEU and chrF of the numbers (S) of depths."""
        return corpus_scores(chosen_lines(self.translations, chosen), [self.references], self.scoring)

    def quality(self, chosen: NDArray[np.int64]) -> tuple[float, float, float]:
        """Return BLEU, chrF and the mean sentence-level chrF of the numbers (S) of depths."""
        bleu, chrf = self.corpus(chosen)
        mean = float(self.labelled.scores[np.arange(len(chosen)), chosen].mean())
        return bleu.value, chrf.value, mean

    def seconds(self, chosen: NDArray[np.int64]) -> float:
        """Return the time of the first T sentences one by one at the numbers of depths, without the choice."""
        count = len(self.times.alone)
        return float(self.times.alone[np.arange(count), chosen[:count]].sum())


@dataclass(frozen=True)
class TrainedClassifier:
    """The best classifier of a size.

    Args:
        fine_tuned: True if it was fine-tuned on another text, by whose validation part the trial's loss is measured.
    """

    selector: Selector
    trial: Trial
    fine_tuned: bool


@dataclass(frozen=True)
class ClassifierScore:
    """One classifier on held-out text.

    Args:
        quality: BLEU, chrF, and mean sentence-level chrF.
        seconds: decoding the timed sentences one by one, the classifier included.
        hits: share of the sentences whose chosen depth is among the best.
        undecided: share of the sentences for which no probability reaches 0.5.
    """

    classifier: TrainedClassifier
    quality: tuple[float, float, float]
    seconds: float
    hits: float
    undecided: float


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
        classifiers: the best one of each size, the selector's first.
        signatures: metric -> signature.
        spread: the largest of `DepthTimes.grouped_spreads`.
    """

    systems: list[SystemScore]
    selected: NDArray[np.int64]
    oracle: NDArray[np.int64]
    choosing: float
    timed: int
    undecided: float
    classifiers: list[ClassifierScore]
    signatures: dict[str, str]
    spread: float

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
    selectors: Sequence[Selector],
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
        selectors: C; in groups, the first one alone.
        oracle: the oracle's depth of every line.
        advance: is told the number of lines that are translated, at each depth and in each round.
    """
    depths, count = list(selectors[0].depths), len(lines)

    def choose(lines: Sequence[str], selector: Selector = selectors[0]) -> list[Depth]:
        return selector.choose([source.ids for source in read_sources(bundle, input_lines(lines))])

    choices = {number: partial(choose, selector=each) for number, each in enumerate(selectors)}

    def translate(lines: Sequence[str], chosen: Sequence[Depth]) -> list[str]:
        return [each.text for each in translate_at_depths(bundle, input_lines(lines), chosen, options)]

    single = {k: partial(translate_texts, bundle, options=options.at(depth)) for k, depth in enumerate(depths)}
    single[len(depths) - 1](lines[:1])  # the first translation is slower than all others
    for first in choices.values():
        first(lines[:1])
    alone, choosing = np.zeros((count, len(depths))), np.zeros((count, len(selectors)))
    for i in range(count):
        line = lines[i : i + 1]
        times = time_decoding(single.items, line, warm_up=0, advance=advance)
        alone[i] = [times[k].seconds for k in single]
        chosen = time_decoding(choices.items, line, warm_up=0)
        choosing[i] = [chosen[number].seconds for number in choices]
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
    spreads = np.array([grouped[k].spread for k in range(len(groups))], dtype=np.float64)
    return DepthTimes(alone, choosing, np.array(fixed), selected, oracles, spreads)


def timing_steps(lines: int, depths: int) -> int:
    """Return the sum of the numbers that `time_depths` tells ``advance``."""
    return lines * depths + ROUNDS * (depths + 2) * lines


def evaluate_selector(text: MeasuredText, classifiers: Sequence[TrainedClassifier]) -> SelectorEvaluation:
    """Score every fixed depth, the classifiers and the oracle.

    Args:
        classifiers: those that ``text.times`` has choices of; the first is the selector.
    """
    times, depths, count = text.times, text.depths, len(text.references)
    oracle = oracle_depths(text.labelled.scores)
    systems = []
    for k, depth in enumerate(depths):
        name, always = "full depth" if k == len(depths) - 1 else "fixed depth", np.full(count, k)
        grouped = float(times.grouped[k])
        systems.append(SystemScore(name, depth, *text.quality(always), text.seconds(always), grouped))
    logits = [each.selector.logits(text.labelled.tokens) for each in classifiers]
    chosen = [choose(each).cpu().numpy() for each in logits]
    undecided = [1 - float(is_decided(each).float().mean()) for each in logits]
    choosing = [float(each) for each in times.choosing.sum(axis=0)]
    found = [
        ClassifierScore(
            each,
            text.quality(chosen[i]),
            text.seconds(chosen[i]) + choosing[i],
            float(text.labelled.labels[np.arange(count), chosen[i]].mean()),
            undecided[i],
        )
        for i, each in enumerate(classifiers)
    ]
    systems.append(SystemScore("selector", None, *found[0].quality, found[0].seconds, times.grouped_selected))
    systems.append(SystemScore("oracle", None, *text.quality(oracle), text.seconds(oracle), times.grouped_oracle))
    signatures = {score.name: score.signature for score in text.corpus(oracle)}
    timed = len(times.choosing)
    spread = float(times.grouped_spreads.max())
    return SelectorEvaluation(systems, chosen[0], oracle, choosing[0], timed, undecided[0], found, signatures, spread)


_LAYERS = "count encoder_layers decoder_layers"


def selector_report(
    measured: SelectorEvaluation, held_out: LabelledSentences, depths: Sequence[Depth], trials: Sequence[Trial]
) -> Report:
    """Return the report.

    Args:
        held_out: the evaluated text.
        depths: K, in the order of the columns of its scores.
        trials: of the search.
    """
    tables = (_systems(measured), _classifiers(measured), _chosen(measured, held_out, depths), _trials(trials))
    return Report("select-depth", tables, tuple(_notes(measured, held_out)))


def _systems(measured: SelectorEvaluation) -> Table:
    full = measured.full
    times = ("number seconds_alone", "share alone_of_full", "number seconds_grouped", "share grouped_of_full")
    shown = columns("text system", _LAYERS, "score bleu chrf sentence_chrf", *times)
    rows = []
    for each in measured.systems:
        quality = (each.bleu, each.chrf, each.sentence_chrf)
        alone = (each.seconds_alone, each.seconds_alone / full.seconds_alone)
        grouped = (each.seconds_grouped, each.seconds_grouped / full.seconds_grouped)
        rows.append((each.name, *(each.depth or (None, None)), *quality, *alone, *grouped))
    return Table("systems", f"Held-out text; times of its first {measured.timed:,} sentences", shown, tuple(rows))


def _classifiers(measured: SelectorEvaluation) -> Table:
    """Return the paper's Table 2: the full depth, the oracle, and every size of the classifier."""
    full, oracle = measured.full, measured.systems[-1]
    measured_on = ("score bleu chrf sentence_chrf", "share among_the_best undecided", "number loss")
    shown = columns("text classifier fine_tuned", "number seconds_alone", "share of_full", *measured_on)
    rows: list[tuple[Value, ...]] = []
    for each in (full, oracle):
        quality, ratio = (each.bleu, each.chrf, each.sentence_chrf), each.seconds_alone / full.seconds_alone
        rows.append((each.name, None, each.seconds_alone, ratio, *quality, None, None, None))
    for one in measured.classifiers:
        trial, tuned = one.classifier.trial, "yes" if one.classifier.fine_tuned else "no"
        name = ", ".join(_count(*each) for each in zip(trial.cell.size, ("layer", "head"), strict=True))
        shares = (one.hits, one.undecided, trial.loss)
        rows.append((name, tuned, one.seconds, one.seconds / full.seconds_alone, *one.quality, *shares))
    title = f"Classifiers by size, one by one; times of the first {measured.timed:,} sentences"
    return Table("classifiers", title, shown, tuple(rows))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _chosen(measured: SelectorEvaluation, held_out: LabelledSentences, depths: Sequence[Depth]) -> Table:
    shown = columns(_LAYERS, "share selector oracle among_the_best")
    shares = [np.bincount(each, minlength=len(depths)) / len(held_out) for each in (measured.selected, measured.oracle)]
    shares.append(held_out.prior)
    rows = tuple((*depth, *(float(share[k]) for share in shares)) for k, depth in enumerate(depths))
    return Table("depths", "Sentences at each depth", shown, rows)


def _trials(trials: Sequence[Trial]) -> Table:
    found = ("number alpha beta lambda", "count epoch", "number own_loss loss", "score chrf")
    shown = columns("count layers heads", *found)
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
    longer = f"takes up to {measured.spread:.1%} more than the fastest, which counts"
    notes.append(f"in groups the slowest of {ROUNDS} rounds {longer}")
    better = measured.better_fixed()
    if better:
        depths = ", ".join(f"({each.depth[0]}, {each.depth[1]})" for each in better if each.depth is not None)
        notes.append(f"fixed depths that are as good as the selector in no more time: {depths}")
    else:
        notes.append("no fixed depth is as good as the selector in no more time")
    notes += [f"{METRICS[name].label}: {signature}" for name, signature in measured.signatures.items()]
    return notes
