"""The quality of a language model on a text: its likelihood by character, byte, token and word.

Bits per character are the negative log-likelihood of all tokens, in bits, over the number of characters, line feeds
included, bits per byte over that of the bytes of UTF-8: models with different vocabularies can be compared by them, and
by the perplexity of words, but not by that of tokens.

Shapes: N tokens, L lines, M blocks of lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.line_parts import PART, LinePart, divide_lines
from sparsenmt.data.tokenizers.spans import Span
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


def block_qualities(
    nats: NDArray[np.floating],
    ids: NDArray[np.integer],
    lines: Sequence[str],
    spans: Callable[[str], Sequence[Span]],
) -> list[TextQuality]:
    """Divide a text into blocks of lines, which are the segments of paired tests.

    The blocks depend on the text alone, so that models with other vocabularies and other segments have the same ones,
    and are long enough to be nearly independent of each other. A line of more than two blocks is divided before a
    space, so that a text in one line has blocks, too; a token belongs to the block where it begins.

    Args:
        nats: (N) the negative log-likelihoods of the tokens.
        ids: (N) the tokens, with `EOS` at the end of each line.
        lines: the L lines, without their line feeds.
        spans: `Tokenizer.spans` of the tokens.
    """
    line_ends = np.flatnonzero(ids == EOS) + 1  # (L)
    found: list[TextQuality] = []
    first, counts, begin = 0, TextCounts(), 0
    for line_end, line in zip(line_ends.tolist(), lines, strict=True):
        divisions = _divisions(line)
        starts = _token_starts(line, spans) if divisions else np.empty(0, np.int64)
        ends = [*(begin + np.searchsorted(starts, divisions)).tolist(), line_end]
        for end, size in zip(ends, _sizes(line, divisions), strict=True):
            counts += size
            if counts.characters >= BLOCK_CHARACTERS or end == len(ids):
                sized = replace(counts, tokens=end - first)
                found.append(TextQuality(float(nats[first:end].sum(dtype=np.float64)), sized))
                first, counts = end, TextCounts()
        begin = line_end
    return found


def _divisions(line: str) -> list[int]:
    """Return the characters of a line before which it is divided; none if it is not long."""
    found, place = [], 0
    while len(line) - place > 2 * BLOCK_CHARACTERS:
        least = place + BLOCK_CHARACTERS
        space = line.find(" ", least, least + BLOCK_CHARACTERS)
        place = least if space < 0 else space
        found.append(place)
    return found


def _token_starts(line: str, spans: Callable[[str], Sequence[Span]]) -> NDArray[np.int64]:
    """Return the first characters of the tokens of a line, which was encoded in parts."""
    found, begin = [], 0
    for part in divide_lines([line], PART):
        found.append(begin + np.array([first for first, _ in spans(part.text)], dtype=np.int64))
        begin += len(part.text)
    return np.concatenate(found)


def _sizes(line: str, divisions: Sequence[int]) -> list[TextCounts]:
    """Return the sizes of the parts of a line, without tokens; a word belongs to the part where it begins."""
    found = []
    for begin, end in zip([0, *divisions], [*divisions, len(line)], strict=True):
        inside = begin > 0 and not line[begin - 1].isspace() and not line[begin].isspace()
        own = LinePart(line[begin:end], end == len(line), inside)
        found.append(TextCounts(0, own.characters, own.words, own.bytes))
    return found


def text_statistics(blocks: Sequence[TextQuality], metric: str) -> Statistics:
    """The statistics of a metric for every block, for resampling."""

    def score(sums: NDArray[np.float64]) -> float:
        return TextQuality(float(sums[0]), TextCounts(*(round(value) for value in sums[1:]))).value(metric)

    rows = [(each.nats, *astuple(each.counts)) for each in blocks]
    return Statistics(metric, np.array(rows, dtype=np.float64), score)
