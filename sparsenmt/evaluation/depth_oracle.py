"""Translations of a text at several depths: how good each is, and which are the best.

Shapes: S sentences, K depths (pairs of encoder and decoder layers), the fastest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def sentence_chrf(
    translations: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    advance: Callable[[int], object] | None = None,
) -> NDArray[np.float64]:
    """(S, K) sentence-level chrF2 (Popović 2016), in percent, by sacrebleu with its defaults.

    Args:
        translations: K lists of S lines.
        references: S lines.
        advance: told the number of sentences that were scored.
    """
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    scores = np.zeros((len(references), len(translations)))
    for i, reference in enumerate(references):
        known: dict[str, float] = {}  # depths often agree
        for k, lines in enumerate(translations):
            if lines[i] not in known:
                known[lines[i]] = metric.sentence_score(lines[i], [reference]).score
            scores[i, k] = known[lines[i]]
        if advance is not None:
            advance(1)
    return scores


def best_depths(scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(S, K) scores -> (S, K): whether a depth's translation is the best, or as good as the best."""
    best: NDArray[np.bool_] = scores == scores.max(axis=1, keepdims=True)
    return best


def oracle_depths(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """(S, K) scores -> (S,): of the best depths of each sentence the fastest, that is the first."""
    first: NDArray[np.int64] = scores.argmax(axis=1)
    return first


def chosen_lines(translations: Sequence[Sequence[str]], depths: Sequence[int] | NDArray[np.int64]) -> list[str]:
    """A line of each sentence: K lists of S lines, and of each sentence the number of its depth."""
    return [translations[int(k)][i] for i, k in enumerate(depths)]
