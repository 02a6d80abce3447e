"""The quality of a language model on a text: its likelihood by character, token and word.

Bits per character are the negative log-likelihood of all tokens, in bits, over the number of characters, line feeds
included: models with different vocabularies can be compared by it, and by the perplexity of words, but not by that of
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsenmt.metric import TEXT_METRICS, TextCounts


@dataclass(frozen=True)
class TextQuality:
    """The negative log-likelihood of a text.

    Args:
        nats: of all tokens.
        counts: sizes of the text.
        segments: nats and number of tokens of each segment, in order.
    """

    nats: float
    counts: TextCounts
    segments: Sequence[tuple[float, int]] = ()

    def value(self, metric: str) -> float:
        """The value of one of `metric.TEXT_METRICS`, or of ``loss``, the mean over tokens in nats."""
        if metric == "loss":
            return self.nats / max(self.counts.tokens, 1)
        return TEXT_METRICS[metric].value(self.nats, self.counts)

    def values(self) -> dict[str, float]:
        """The loss and all metrics, by name."""
        return {name: self.value(name) for name in ("loss", *TEXT_METRICS)}
