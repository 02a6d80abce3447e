"""The quality of a language model on a text: its likelihood by character, byte, token and word.

Bits per character are the negative log-likelihood of all tokens, in bits, over the number of characters, line feeds
included, bits per byte over that of the bytes of UTF-8: models with different vocabularies can be compared by them, and
by the perplexity of words, but not by that of tokens.

Shapes: N tokens, L lines, M blocks of lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.line_parts import LinePart
from sparsenmt.data.vocabulary import EOS
from sparsenmt.evaluation.metrics import Statistics
from sparsenmt.metric import TEXT_METRICS, TextCounts

BLOCK_CHARACTERS = 1000
"""Smallest size of a block of lines."""


@dataclass(frozen=True)
class TextQuality:
    """The negative log-likelihood of a text, or of a part of it, in nats, and its sizes."""

    nats: float
    counts: TextCounts

    def value(self, metric: str) -> float:
        """The value of one of `metric.TEXT_METRICS`, or of ``loss``, the mean over tokens in nats."""
        if metric == "loss":
            return self.nats / max(self.counts.tokens, 1)
        return TEXT_METRICS[metric].value(self.nats, self.counts)

    def values(self) -> dict[str, float]:
        """The loss and all metrics, by name."""
        return {name: self.value(name) for name in ("loss", *TEXT_METRICS)}


def block_qualities(nats: NDArray[np.floating], ids: NDArray[np.integer], lines: Sequence[str]) -> list[TextQuality]:
    """Divide a text into blocks of whole lines, which are the segments of paired tests.

    The blocks depend on the text alone, so that models with other vocabularies and other segments have the same ones,
    and are long enough to be nearly independent of each other.

    Args:
        nats: (N) the negative log-likelihoods of the tokens.
        ids: (N) the tokens, with `EOS` at the end of each line.
        lines: the L lines, without their line feeds.
    """
    ends = np.flatnonzero(ids == EOS) + 1  # (L)
    found: list[TextQuality] = []
    first, counts = 0, TextCounts()
    for end, line in zip(ends.tolist(), lines, strict=True):
        own = LinePart(line)
        counts += TextCounts(0, own.characters, own.words, own.bytes)
        if counts.characters >= BLOCK_CHARACTERS or end == len(ids):
            sized = replace(counts, tokens=end - first)
            found.append(TextQuality(float(nats[first:end].sum(dtype=np.float64)), sized))
            first, counts = end, TextCounts()
    return found


def text_statistics(blocks: Sequence[TextQuality], metric: str) -> Statistics:
    """The statistics of a metric for every block, for resampling."""

    def score(sums: NDArray[np.float64]) -> float:
        return TextQuality(float(sums[0]), TextCounts(*(round(value) for value in sums[1:]))).value(metric)

    rows = [(each.nats, *astuple(each.counts)) for each in blocks]
    return Statistics(metric, np.array(rows, dtype=np.float64), score)
