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
        grouped: (K + 2) for all sentences in batches, at each depth, each at the selected depth, the choice included,
            and each at the oracle's depth.
        spread: the largest excess of the slowest round over the fastest, of the times in batches.
    """

    alone: NDArray[np.float64]
    choosing: NDArray[np.float64]
    grouped: Sequence[float]
    spread: float


@dataclass(frozen=True)
class SystemScore:
    """Quality of one way to choose depths on the whole text, and its time on the first sentences.

    Args:
        depth: of all sentences; None: each sentence has its own.
        quality: BLEU, chrF, and sentence-level chrF, the mean over the sentences.
        seconds_alone: decoding one sentence after the other.
        seconds_grouped: decoding in batches.
    """

    name: str
    depth: Depth | None
    quality: tuple[float, float, float]
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
        chosen: (S) numbers of the depths that it chooses.
        quality: BLEU, chrF, and mean sentence-level chrF.
        choosing: seconds that it takes for the timed sentences, one after the other.
        seconds: decoding the timed sentences one by one, the classifier included.
        hits: share of the sentences whose chosen depth is among the best.
        undecided: share of the sentences for which no probability reaches 0.5.
    """

    classifier: TrainedClassifier
    chosen: NDArray[np.int64]
    quality: tuple[float, float, float]
    choosing: float
    seconds: float
    hits: float
    undecided: float


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
    turns = [grouped[k] for k in range(len(groups))]
    spread = max(each.spread or 0.0 for each in turns)
    return DepthTimes(alone, choosing, [each.seconds for each in turns], spread)


def timing_steps(lines: int, depths: int) -> int:
    """Return the sum of the numbers that `time_depths` tells ``advance``."""
    return lines * depths + ROUNDS * (depths + 2) * lines


def selector_report(text: MeasuredText, classifiers: Sequence[TrainedClassifier], trials: Sequence[Trial]) -> Report:
    """Score every fixed depth, the classifiers and the oracle, and return the report.

    Args:
        classifiers: those that ``text.times`` has choices of, the best one of each size; the first is the selector.
        trials: of the search.
    """
    choosing = text.times.choosing.sum(axis=0).tolist()
    found = [_classifier_score(text, each, seconds) for each, seconds in zip(classifiers, choosing, strict=True)]
    oracle = oracle_depths(text.labelled.scores)
    systems = _system_scores(text, found[0], oracle)
    tables = (_systems(text, systems), _classifiers(text, systems, found), _chosen(text, found[0].chosen, oracle))
    signatures = [f"{METRICS[score.name].label}: {score.signature}" for score in text.corpus(oracle)]
    return Report("select-depth", (*tables, _trials(trials)), (*_notes(text, systems, found[0]), *signatures))


def _classifier_score(text: MeasuredText, classifier: TrainedClassifier, choosing: float) -> ClassifierScore:
    logits = classifier.selector.logits(text.labelled.tokens)
    chosen: NDArray[np.int64] = choose(logits).cpu().numpy()
    hits = float(text.labelled.labels[np.arange(len(chosen)), chosen].mean())
    undecided = 1 - float(is_decided(logits).float().mean())
    seconds = text.seconds(chosen) + choosing
    return ClassifierScore(classifier, chosen, text.quality(chosen), choosing, seconds, hits, undecided)


def _system_scores(text: MeasuredText, own: ClassifierScore, oracle: NDArray[np.int64]) -> list[SystemScore]:
    """Return the scores of the fixed depths, the fastest first, then of the selector, then of the oracle."""
    *fixed, selected, best = text.times.grouped
    systems = []
    for k, (depth, grouped) in enumerate(zip(text.depths, fixed, strict=True)):
        name, always = "full depth" if k == len(fixed) - 1 else "fixed depth", np.full(len(text.references), k)
        systems.append(SystemScore(name, depth, text.quality(always), text.seconds(always), grouped))
    return [
        *systems,
        SystemScore("selector", None, own.quality, own.seconds, selected),
        SystemScore("oracle", None, text.quality(oracle), text.seconds(oracle), best),
    ]


_LAYERS = "count encoder_layers decoder_layers"


def _systems(text: MeasuredText, systems: Sequence[SystemScore]) -> Table:
    *_, full, _, _ = systems
    times = ("number seconds_alone", "share alone_of_full", "number seconds_grouped", "share grouped_of_full")
    shown = columns("text system", _LAYERS, "score bleu chrf sentence_chrf", *times)
    rows = []
    for each in systems:
        alone = (each.seconds_alone, each.seconds_alone / full.seconds_alone)
        grouped = (each.seconds_grouped, each.seconds_grouped / full.seconds_grouped)
        rows.append((each.name, *(each.depth or (None, None)), *each.quality, *alone, *grouped))
    title = f"Held-out text; times of its first {len(text.times.alone):,} sentences"
    return Table("systems", title, shown, tuple(rows))


def _classifiers(text: MeasuredText, systems: Sequence[SystemScore], found: Sequence[ClassifierScore]) -> Table:
    """Return the paper's Table 2: the full depth, the oracle, and every size of the classifier."""
    *_, full, _, oracle = systems
    measured_on = ("score bleu chrf sentence_chrf", "share among_the_best undecided", "number loss")
    shown = columns("text classifier fine_tuned", "number seconds_alone", "share of_full", *measured_on)
    rows: list[tuple[Value, ...]] = []
    for each in (full, oracle):
        ratio = each.seconds_alone / full.seconds_alone
        rows.append((each.name, None, each.seconds_alone, ratio, *each.quality, None, None, None))
    for one in found:
        trial, tuned = one.classifier.trial, "yes" if one.classifier.fine_tuned else "no"
        name = ", ".join(_count(*each) for each in zip(trial.cell.size, ("layer", "head"), strict=True))
        shares = (one.hits, one.undecided, trial.loss)
        rows.append((name, tuned, one.seconds, one.seconds / full.seconds_alone, *one.quality, *shares))
    title = f"Classifiers by size, one by one; times of the first {len(text.times.alone):,} sentences"
    return Table("classifiers", title, shown, tuple(rows))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _chosen(text: MeasuredText, selected: NDArray[np.int64], oracle: NDArray[np.int64]) -> Table:
    shown = columns(_LAYERS, "share selector oracle among_the_best")
    shares = [np.bincount(each, minlength=len(text.depths)) / len(each) for each in (selected, oracle)]
    shares.append(text.labelled.prior)
    rows = tuple((*depth, *(float(share[k]) for share in shares)) for k, depth in enumerate(text.depths))
    return Table("depths", "Sentences at each depth", shown, rows)


def _trials(trials: Sequence[Trial]) -> Table:
    found = ("number alpha beta lambda", "count epoch", "number own_loss loss", "score chrf")
    shown = columns("count layers heads", *found)
    ordered = sorted(trials, key=lambda trial: trial.loss)
    rows = tuple((*astuple(each.cell), each.epoch, each.own_loss, each.loss, each.chrf) for each in ordered)
    return Table("search", "Trials of the search, on the validation set, the chosen one first", shown, rows)


def _notes(text: MeasuredText, systems: Sequence[SystemScore], chosen: ClassifierScore) -> list[str]:
    *fixed, own, _ = systems
    full = fixed[-1]
    bleu, chrf, _ = (ours - theirs for ours, theirs in zip(own.quality, full.quality, strict=True))
    notes = [
        f"held-out sentences: {len(text.labelled):,}; in {chosen.hits:.1%} the chosen depth is among the best; "
        f"for {chosen.undecided:.1%} no depth reaches a probability of 0.5, and the full depth is taken",
        f"the selector takes {own.seconds_alone / full.seconds_alone:.1%} of the full depth's time one by one, "
        f"{own.seconds_grouped / full.seconds_grouped:.1%} in groups, itself included "
        f"({1000 * chosen.choosing / len(text.times.alone):.2f} ms a sentence); BLEU {bleu:+.2f}, chrF {chrf:+.2f}",
        f"in groups the slowest of {ROUNDS} rounds takes up to {text.times.spread:.1%} more than the fastest, which "
        "counts",
    ]
    better = [  # by both metrics at least as good, in no more time
        each
        for each in fixed
        if each.quality[0] >= own.quality[0]
        and each.quality[1] >= own.quality[1]
        and each.seconds_alone <= own.seconds_alone
    ]
    if better:
        depths = ", ".join(f"({each.depth[0]}, {each.depth[1]})" for each in better if each.depth is not None)
        notes.append(f"fixed depths that are as good as the selector in no more time: {depths}")
    else:
        notes.append("no fixed depth is as good as the selector in no more time")
    return notes
