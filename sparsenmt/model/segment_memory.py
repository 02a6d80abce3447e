"""The states that a language model carries from one segment of a text to the next (Dai et al. 2019, section 3.2).

Shapes: B rows, M positions of the memory, D model dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SegmentMemory:
    """The inputs of every execution step at the last positions before a segment, without gradient.

    Of a recurrent layer it is the state, as if it were one position.
    """

    states: tuple[Tensor, ...]  # of each step: (B, M, D); M differs between steps
    length: int = 0  # positions of the text so far: the next segment begins there

    def after(self, inputs: Sequence[Tensor], keep: Sequence[int | None], count: int) -> SegmentMemory:
        """The memory after a segment of ``count`` positions.

        Args:
            inputs: of each step, (B, T, D).
            keep: positions to keep, of each step; None: all.
        """
        states = []
        for before, new, most in zip(self.states, inputs, keep, strict=True):
            new = new.detach()
            enough = most is not None and new.shape[1] >= most
            joined = new if enough else torch.cat([before, new], 1)
            first = 0 if most is None else max(joined.shape[1] - most, 0)
            states.append(joined[:, first:].clone())  # a view would keep all of it alive
        return SegmentMemory(tuple(states), self.length + count)

    @property
    def bytes(self) -> int:
        """Bytes of the states."""
        return sum(each.nbytes for each in self.states)

    def select(self, rows: slice) -> SegmentMemory:
        """Return the memory of some rows."""
        return SegmentMemory(tuple(each[rows] for each in self.states), self.length)

    @staticmethod
    def concatenate(parts: Sequence[SegmentMemory]) -> SegmentMemory:
        """Concatenate the rows of memories of equal lengths."""
        states = tuple(torch.cat(each) for each in zip(*(part.states for part in parts), strict=True))
        return SegmentMemory(states, parts[0].length)

    @staticmethod
    def interleave(parts: Sequence[SegmentMemory]) -> SegmentMemory:
        """Join memories of equal sizes: the first row of each, then the second row of each, and so on."""
        states = tuple(
            torch.stack(each, 1).flatten(0, 1) for each in zip(*(part.states for part in parts), strict=True)
        )
        return SegmentMemory(states, parts[0].length)

    def tensors(self) -> dict[str, Tensor]:
        """Return the memory as named tensors, for a checkpoint."""
        states = {f"states.{step}": each for step, each in enumerate(self.states)}
        return {**states, "length": torch.tensor(self.length)}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], device: torch.device) -> SegmentMemory:
        """Return the memory that `tensors` was made of."""
        steps = len(tensors) - 1
        return SegmentMemory(
            tuple(tensors[f"states.{step}"].to(device) for step in range(steps)), int(tensors["length"])
        )
