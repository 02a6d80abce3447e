"""The gates that a model's filters give to the source positions of sentences, and sparsity rates.

The sparsity rate is always the share of real source positions, ``</s>`` included, whose gate in evaluation is
exactly 0 (design rule 6).
Shapes: B sentences, S source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import length_batches
from sparsenmt.decoding.inputs import SourceLine, describe_out_of_memory, make_source
from sparsenmt.decoding.translate import line_gates
from sparsenmt.model.memory import Memory
from sparsenmt.report.tables import Value, columns

HINT_SPLIT = "Split the line, or use a machine with more memory."
NO_FILTER = "no filter decides, nothing is dropped"


@dataclass(frozen=True)
class GatedLine:
    """A line and the gates of its tokens in evaluation."""

    line: SourceLine
    gates: NDArray[np.float64] | None
    """(S,), ``</s>`` last; None where no filter decides."""

    @property
    def dropped(self) -> NDArray[np.bool_]:
        """(S,) True where the gate is 0."""
        if self.gates is None:
            return np.zeros(len(self.line.ids), dtype=np.bool_)
        dropped: NDArray[np.bool_] = self.gates == 0
        return dropped


RATE_COLUMNS = columns("count positions dropped", "share sparsity")
"""The columns of `SparsityRate.cells`."""


@dataclass(frozen=True)
class SparsityRate:
    """The number of source positions of a kind, and the number of those that are dropped."""

    positions: int = 0
    dropped: int = 0

    def __add__(self, other: SparsityRate) -> SparsityRate:
        return SparsityRate(self.positions + other.positions, self.dropped + other.dropped)

    @property
    def sparsity(self) -> float | None:
        """The share of positions that are dropped; None if there are no positions."""
        return self.dropped / self.positions if self.positions else None

    @property
    def cells(self) -> tuple[Value, ...]:
        """The cells of a table row (`RATE_COLUMNS`)."""
        return self.positions, self.dropped, self.sparsity


@dataclass(frozen=True)
class LineBatches:
    """Lines that a model reads, in batches of similar length.

    Args:
        batch_tokens: limit of a batch: its number of sentences times its longest length.
        advance: called with the number of sentences of each finished batch.
    """

    bundle: Bundle
    lines: Sequence[SourceLine]
    batch_tokens: int
    advance: Callable[[int], object] = lambda sentences: None

    @torch.inference_mode()
    def encoded(
        self, lengths: Sequence[int] | None = None, begin: Callable[[list[int]], object] = lambda chosen: None
    ) -> Iterator[tuple[list[int], Memory]]:
        """Run the encoder over the batches without compaction: every position keeps its place.

        Args:
            lengths: lengths of the sentences; None: those of the sources. A target may be longer than its source.
            begin: called with the indices in ``lines`` of a batch's sentences before they are encoded.

        Yields:
            the indices in ``lines`` of the batch's sentences; the memory that the decoder gets.

        Raises:
            UserError: a batch needs more memory than there is.
        """
        bundle, most = self.bundle, self.batch_tokens
        for chosen in length_batches(lengths or [len(line.ids) for line in self.lines], most):
            batch = [self.lines[i] for i in chosen]
            begin(chosen)
            with describe_out_of_memory(batch, "without a beam", batch_tokens=most, single_hint=HINT_SPLIT):
                source = make_source(bundle, batch)
                (memory,) = bundle.model.encode(source, exits=bundle.depth[:1]).memories.values()
                yield chosen, memory
            self.advance(len(batch))


def gated_lines(text: LineBatches) -> list[GatedLine]:
    """Compute the gates of lines; returns them in the same order."""
    result: dict[int, GatedLine] = {}
    for chosen, memory in text.encoded():
        result.update(zip(chosen, gated_batch(memory, [text.lines[i] for i in chosen]), strict=True))
    return [result[i] for i in range(len(text.lines))]


def gated_batch(memory: Memory, lines: Sequence[SourceLine]) -> list[GatedLine]:
    """Return the lines of a batch with their gates, which its memory has."""
    return list(map(GatedLine, lines, line_gates(memory, lines)))


def overall_rate(lines: Iterable[GatedLine]) -> SparsityRate:
    """Return the rate of all positions of all lines."""
    return sum((SparsityRate(len(each.line.ids), int(each.dropped.sum())) for each in lines), SparsityRate())
