"""What a selector is worth on held-out text: time and quality beside every fixed depth, and beside the oracle.

Shapes: S sentences, T of them that are timed, K depths, the fastest first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.decoding.translate import Translation, translate_texts
from sparsenmt.depth_selector.selector import Selector
from sparsenmt.depth_selector.training import choose, is_decided
from sparsenmt.depth_selector.translate import translate_at_depths
from sparsenmt.evaluation.depth_oracle import chosen_lines, oracle_depths
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding
from sparsenmt.store import Bundle

ROUNDS = 2
"""How often the text is translated in groups; the fastest round counts."""


@dataclass(frozen=True)
class DepthTimes:
    """Seconds on the first T sentences."""

    alone: NDArray[np.float64]  # (T, K) a sentence by itself, at each depth
    choosing: NDArray[np.float64]  # (T) what the selector takes for it
    grouped: NDArray[np.float64]  # (K) the text in batches, at each depth
    grouped_selected: float  # each sentence at the depth that is chosen, choosing included
    grouped_oracle: float


@dataclass(frozen=True)
class DepthChoice:
    """One way to choose depths, on the whole text; times on its first sentences."""

    name: str
    depth: Depth | None
    """None: each sentence has its own."""
    bleu: float
    chrf: float
    sentence_chrf: float
    """Mean over the sentences."""
    seconds_alone: float
    """One sentence after the other."""
    seconds_grouped: float


@dataclass(frozen=True)
class SelectorEvaluation:
    """All systems: the fixed depths, the fastest first, then the selector, then the oracle."""

    systems: list[DepthChoice]
    selected: NDArray[np.int64]  # (S) numbers of depths
    oracle: NDArray[np.int64]  # (S)
    choosing: float
    """Seconds that the selector takes for the timed sentences, one after the other."""
    timed: int
    """T."""
    undecided: float
    """Share of the sentences for which no probability reaches 0.5."""

    @property
    def fixed(self) -> list[DepthChoice]:
        return self.systems[:-2]

    @property
    def full(self) -> DepthChoice:
        return self.systems[-3]

    @property
    def selector(self) -> DepthChoice:
        return self.systems[-2]

    def better_fixed(self) -> list[DepthChoice]:
        """Fixed depths that are at least as good as the selector by both metrics, in no more time."""
        own = self.selector
        return [
            each
            for each in self.fixed
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

    One by one, every depth has its turn at a sentence before the next one comes, so that all see the same machine; in
    groups the depths take turns, too. The time of a selection is the sum over what it chooses.

    Args:
        oracle: the oracle's depth of every line.
        advance: told the number of lines that are translated, at each depth and in each round.
    """
    tell = advance or (lambda count: None)
    depths = list(selector.depths)
    _translate(bundle, lines[0], options, depths[-1])  # the first translation is slower than all others
    selector.choose([read_sources(bundle, input_lines(lines[:1]))[0].ids])
    alone, choosing = np.zeros((len(lines), len(depths))), np.zeros(len(lines))
    for i, line in enumerate(lines):
        for k, depth in enumerate(depths):
            alone[i, k] = _seconds(partial(_translate, bundle, line, options, depth))
            tell(1)
        choosing[i] = _seconds(partial(_choose, bundle, selector, [line]))

    def together(chosen: Sequence[Depth]) -> list[str]:
        return _texts(translate_at_depths(bundle, input_lines(lines), chosen, options))

    ways: list[Callable[[], object]] = [partial(together, [depth] * len(lines)) for depth in depths]
    ways.append(lambda: together(_choose(bundle, selector, lines)))
    ways.append(partial(together, oracle))
    grouped = np.full(len(ways), np.inf)
    for _ in range(ROUNDS):
        for number, way in enumerate(ways):
            grouped[number] = min(grouped[number], _seconds(way))
            tell(len(lines))
    return DepthTimes(alone, choosing, grouped[:-2], float(grouped[-2]), float(grouped[-1]))


def timing_steps(lines: int, depths: int) -> int:
    """What `time_depths` tells ``advance`` in all."""
    return lines * depths + ROUNDS * (depths + 2) * lines


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _translate(bundle: Bundle, line: str, options: Decoding, depth: Depth) -> list[str]:
    return translate_texts(bundle, [line], options.at(depth))


def _texts(translations: Iterable[Translation]) -> list[str]:
    """Text is made when it is asked for, and what is timed ends with it."""
    return [each.text for each in translations]


def _choose(bundle: Bundle, selector: Selector, lines: Sequence[str]) -> list[Depth]:
    return selector.choose([source.ids for source in read_sources(bundle, input_lines(lines))])


def measure(
    translations: Sequence[Sequence[str]],
    references: Sequence[str],
    scores: NDArray[np.float64],
    logits: Tensor,
    depths: Sequence[Depth],
    timed: DepthTimes,
    *,
    language: str,
) -> SelectorEvaluation:
    """Put together what is known of every system.

    Args:
        translations: K lists of S lines.
        references: S lines.
        scores: (S, K) sentence-level chrF.
        logits: (S, K) the selector's.
        depths: K.
        timed: of the first T sentences.
        language: code of the target language.
    """
    oracle, selected = oracle_depths(scores), choose(logits).cpu().numpy()

    def system(name: str, chosen: NDArray[np.int64], depth: Depth | None, alone: float, grouped: float) -> DepthChoice:
        lines = chosen_lines(translations, chosen)
        bleu, chrf = corpus_scores(lines, [references], metrics=("bleu", "chrf"), language=language)
        mean = float(scores[np.arange(len(chosen)), chosen].mean())
        return DepthChoice(name, depth, bleu.value, chrf.value, mean, alone, grouped)

    count = len(timed.choosing)

    def seconds(chosen: NDArray[np.int64]) -> float:
        return float(timed.alone[np.arange(count), chosen[:count]].sum())

    systems = []
    for k, depth in enumerate(depths):
        name = "full depth" if k == len(depths) - 1 else "fixed depth"
        always = np.full(len(references), k)
        systems.append(system(name, always, depth, seconds(always), float(timed.grouped[k])))
    choosing = float(timed.choosing.sum())
    systems.append(system("selector", selected, None, seconds(selected) + choosing, timed.grouped_selected))
    systems.append(system("oracle", oracle, None, seconds(oracle), timed.grouped_oracle))
    undecided = 1 - float(is_decided(logits).float().mean())
    return SelectorEvaluation(systems, selected, oracle, choosing, count, undecided)
