"""The quality of translations at several depths, sentence by sentence, and the oracle that chooses the best.

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
    lowercase: bool = False,
    advance: Callable[[int], object] | None = None,
) -> NDArray[np.float64]:
    """Return (S, K) sentence-level chrF2 (Popović 2016), in percent, by sacrebleu with its other defaults.

    Args:
        translations: K lists of S lines.
        references: S lines.
        advance: told the number of sentences that were scored.
    """
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF(lowercase=lowercase)
    scores = np.zeros((len(references), len(translations)))
    for i, reference in enumerate(references):
        known: dict[str, float] = {}  # depths often give the same translation
        for k, lines in enumerate(translations):
            if lines[i] not in known:
                known[lines[i]] = metric.sentence_score(lines[i], [reference]).score
            scores[i, k] = known[lines[i]]
        if advance is not None:
            advance(1)
    return scores


def best_depths(scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (S, K): True for the depths whose score is the highest, ties included; (S, K) scores."""
    best: NDArray[np.bool_] = scores == scores.max(axis=1, keepdims=True)
    return best


def oracle_depths(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return (S,) the fastest of the best depths of each sentence, which is the first; (S, K) scores."""
    first: NDArray[np.int64] = scores.argmax(axis=1)
    return first


def chosen_lines(translations: Sequence[Sequence[str]], depths: Sequence[int] | NDArray[np.int64]) -> list[str]:
    """Select the translation of each sentence from K lists of S lines by the number of its depth."""
    return [translations[int(k)][i] for i, k in enumerate(depths)]
