"""The log-probabilities that a model gives to texts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsenmt.report.plot_labels import shortened

_LONGEST = 60  # characters of a text in a line


@dataclass(frozen=True, repr=False)
class Likelihood:
    """The log-probabilities of one text.

    Args:
        text: as it was given.
        tokens: its tokens, ``</s>`` last.
        token_log_probabilities: one for each token, natural logarithms.
    """

    text: str
    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]

    @property
    def log_probability(self) -> float:
        """The natural logarithm of the probability of the text: the sum over its tokens."""
        return math.fsum(self.token_log_probabilities)

    def __repr__(self) -> str:
        text = shortened(self.text, _LONGEST)
        return f"Likelihood({text!r}, log-probability {self.log_probability:.4f}, {len(self.tokens)} tokens)"
