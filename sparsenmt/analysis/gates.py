"""What a model's filters decide on sentences: gates of source positions, and rates.

Sparsity is always the share of real source positions, ``</s>`` included, whose test gate is exactly 0 (design rule 6).
Shapes: B sentences, S source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparsenmt.data.batching import length_batches
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, describe_out_of_memory, make_source
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source

ALONE = "Split the line, or use a machine with more memory."


@dataclass(frozen=True)
class GatedLine:
    """A line and the test gates of its pieces."""

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


@dataclass(frozen=True)
class Rate:
    """How many positions of a kind there are, and how many of them are dropped."""

    positions: int = 0
    dropped: int = 0

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.positions + other.positions, self.dropped + other.dropped)

    @property
    def sparsity(self) -> float | None:
        """Share of positions that are dropped; None if there are none."""
        return self.dropped / self.positions if self.positions else None


@torch.inference_mode()
def encoded_batches(
    bundle: ModelBundle,
    lines: Sequence[SourceLine],
    *,
    batch_tokens: int,
    lengths: Sequence[int] | None = None,
    begin: Callable[[list[int]], object] | None = None,
    advance: Callable[[int], object] | None = None,
) -> Iterator[tuple[list[int], Source, Memory]]:
    """Run the encoder over lines, in batches of similar length, every position where it was (nothing is compacted).

    Args:
        batch_tokens: sentences times the longest length of a batch, at most.
        lengths: of the sentences, where a target may be longer than its source; None: those of the sources.
        begin: told the places in ``lines`` of a batch's sentences before they are encoded.
        advance: told the number of sentences that each batch finished.

    Returns:
        places in ``lines`` of the batch's sentences; the batch; the memory that the decoder gets.

    Raises:
        UserError: a batch needs more memory than there is.
    """
    for chosen in length_batches([len(line.ids) for line in lines] if lengths is None else lengths, batch_tokens):
        batch = [lines[i] for i in chosen]
        if begin is not None:
            begin(chosen)
        with describe_out_of_memory(batch, "without a beam", batch_tokens=batch_tokens, single_hint=ALONE):
            source = make_source(bundle, batch)
            (memory,) = bundle.model.encode(source, exits=bundle.depth[:1]).memories.values()
            yield chosen, source, memory
        if advance is not None:
            advance(len(batch))


def gated_lines(
    bundle: ModelBundle,
    lines: Sequence[SourceLine],
    *,
    batch_tokens: int,
    advance: Callable[[int], object] | None = None,
) -> list[GatedLine]:
    """The gates of lines, in their order."""
    found: list[GatedLine | None] = [None] * len(lines)
    for chosen, _, memory in encoded_batches(bundle, lines, batch_tokens=batch_tokens, advance=advance):
        for row, i in enumerate(chosen):
            found[i] = GatedLine(lines[i], row_gates(memory, row, len(lines[i].ids)))
    return [each for each in found if each is not None]


def row_gates(memory: Memory, row: int, length: int) -> NDArray[np.float64] | None:
    """(S,) gates of one sentence of a batch, without padding; None where no filter decides."""
    if memory.gates is None:
        return None
    gates: NDArray[np.float64] = memory.gates[row, :length].double().cpu().numpy()
    return gates


def overall_rate(lines: Iterable[GatedLine]) -> Rate:
    """Of all positions of all lines."""
    return sum((Rate(len(each.line.ids), int(each.dropped.sum())) for each in lines), Rate())
