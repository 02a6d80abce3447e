"""A memory filter that decides by states alone, so that stand-ins are gated again and may be opened again."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.sparsity.registry import Options, register


class FaintOptions(Options):
    closed: Literal["zero", "mask"] = Field("zero", description="What closed positions become.")


class FaintFilter(MemoryFilter):
    """clamp(1.5 sigmoid(w . state) - 0.5, 0, 1): about half of the gates are exactly 0 at first, and a few near 1."""

    def __init__(self, options: FaintOptions, dimension: int) -> None:
        super().__init__()
        self.closed: Literal["zero", "mask"] = options.closed
        self.direction = nn.Parameter(torch.randn(dimension) * 2 * dimension**-0.5)
        self.bias = nn.Parameter(torch.tensor(-0.7))

    def forward(self, memory: Memory) -> Gates:
        values = (1.5 * torch.sigmoid(memory.states.to(self.direction.dtype) @ self.direction + self.bias) - 0.5).clamp(
            0, 1
        )
        return Gates(values, self.closed, {"toy_strength": memory.source_mean(values)})


@register("memory", "toy_faint", options=FaintOptions, examples=({}, {"closed": "mask"}))
def build(options: FaintOptions, *, dimension: int) -> FaintFilter:
    return FaintFilter(options, dimension)
