"""The encoder's output for a sentence.

Shapes: S source positions, W words, D model dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.kept_words import KeptWords


@dataclass(frozen=True, eq=False, repr=False)
class SourceStates:
    """The states that the decoder reads of a sentence, ``</s>`` included; those of dropped tokens are zero.

    Args:
        text: as it was given.
        states: (S, D) in fp32.
        tokens: the S tokens.
        words: the W words, ``</s>`` last.
        word_lengths: the number of tokens of each word; their sum is S.
        kept: words and gates; None: no filter decides in this model.
    """

    text: str
    states: NDArray[np.float32]
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_lengths: tuple[int, ...]
    kept: KeptWords | None = None

    def word_states(self) -> NDArray[np.float32]:
        """Return (W, D): the mean of the states of each word's tokens."""
        starts = np.cumsum([0, *self.word_lengths[:-1]])
        lengths = np.array(self.word_lengths, dtype=np.float32)[:, None]
        sums = np.add.reduceat(self.states, starts, axis=0)
        return (sums / lengths).astype(np.float32, copy=False)

    def __repr__(self) -> str:
        size, dimension = self.states.shape
        return f"SourceStates({size} tokens in {len(self.words)} words, {dimension} dimensions)"
