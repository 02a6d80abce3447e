"""The base of memory filters that follow a rule, without parameters.

Shapes: B sentences, S source positions, S' entries of a memory.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.sparsity.registry import Options


class RuleOptions(Options):
    closed: Literal["zero", "mask"] = Field(
        "zero", description="What replaces a dropped position: a zero vector (as with L0Drop), or nothing (masked)."
    )


class RuleFilter(MemoryFilter):
    """A filter with gates of 0 or 1, the same in training and evaluation, and without a loss."""

    position_dependent = True

    def __init__(self, closed: Literal["zero", "mask"]) -> None:
        super().__init__()
        self.closed: Literal["zero", "mask"] = closed

    def dropped(self, memory: Memory) -> Tensor:
        """(B, S) bool: the source positions that the rule drops. Values at padding are ignored."""
        raise NotImplementedError

    def forward(self, memory: Memory) -> Gates:
        is_position = memory.positions >= 0  # a stand-in was dropped before, and stays closed
        kept = is_position & ~self.dropped(memory).gather(1, memory.positions.clamp_min(0))
        return Gates(kept.to(memory.states.dtype), self.closed)
