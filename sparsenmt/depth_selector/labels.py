"""Sentences with what their translation at every depth is worth, and their parts: training, validation, held out.

Shapes: S sentences, K depths, the fastest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.evaluation.depth_oracle import best_depths
from sparsenmt.files import sha256_text

_PARTS = 10
"""A tenth is for validation; another one is held out where there is no other text for that."""


@dataclass(frozen=True)
class Labelled:
    """Sentences with the scores of their translations.

    Args:
        pieces: of S sources, each ended by ``</s>``.
        scores: (S, K) sentence-level chrF.
    """

    pieces: Sequence[Sequence[int]]
    scores: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def labels(self) -> NDArray[np.bool_]:
        """(S, K): every depth whose translation is the best, or as good as the best."""
        return best_depths(self.scores)

    @property
    def prior(self) -> NDArray[np.float64]:
        """(K) share of the sentences that have the label."""
        shares: NDArray[np.float64] = self.labels.mean(axis=0)
        return shares

    def rows(self, numbers: Sequence[int]) -> Labelled:
        """Some of the sentences."""
        return Labelled([self.pieces[i] for i in numbers], self.scores[list(numbers)])


@dataclass(frozen=True)
class Parts:
    """Numbers of sentences, in the order of the text."""

    training: list[int]
    validation: list[int]
    held_out: list[int]


def parts_of(lines: Sequence[str], *, held_out: bool) -> Parts:
    """The parts of a text, by a hash of each sentence: those that are equal never stand in two of them.

    Args:
        held_out: whether a part is held out.
    """
    parts = Parts([], [], [])
    for number, line in enumerate(lines):
        part = int(sha256_text(line)[:12], 16) % _PARTS
        chosen = parts.validation if part == 0 else parts.held_out if part == 1 and held_out else parts.training
        chosen.append(number)
    return parts
