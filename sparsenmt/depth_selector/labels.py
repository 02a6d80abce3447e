"""Labels of sentences, from the quality of their translations at every depth, and the split of a text.

Shapes: S sentences, K depths, the fastest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.evaluation.depth_oracle import best_depths
from sparsenmt.storage.files import sha256_text

_PARTS = 10
"""A tenth is the validation set; another one is held out if there is no test set."""


@dataclass(frozen=True)
class LabelledSentences:
    """Sentences with the scores of their translations.

    Args:
        tokens: of S sources, each ended by ``</s>``.
        scores: (S, K) sentence-level chrF.
    """

    tokens: Sequence[Sequence[int]]
    scores: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def labels(self) -> NDArray[np.bool_]:
        """(S, K) True for every depth whose translation is the best, or as good as the best."""
        return best_depths(self.scores)

    @property
    def prior(self) -> NDArray[np.float64]:
        """(K) share of the sentences with the label."""
        shares: NDArray[np.float64] = self.labels.mean(axis=0)
        return shares

    def rows(self, numbers: Sequence[int]) -> LabelledSentences:
        """Return the sentences with these numbers."""
        return LabelledSentences([self.tokens[i] for i in numbers], self.scores[list(numbers)])


@dataclass(frozen=True)
class DataSplit:
    """The numbers of the sentences in each part of a text, in order."""

    training: list[int]
    validation: list[int]
    held_out: list[int]


def split_text(lines: Sequence[str], *, held_out: bool) -> DataSplit:
    """Split a text by a hash of each sentence, so that equal sentences are in the same part.

    Args:
        held_out: True to hold out a part.
    """
    split = DataSplit([], [], [])
    for number, line in enumerate(lines):
        part = int(sha256_text(line)[:12], 16) % _PARTS
        chosen = split.validation if part == 0 else split.held_out if part == 1 and held_out else split.training
        chosen.append(number)
    return split
