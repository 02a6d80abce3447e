"""A memory filter that decides by a source feature: some tags are dropped, others are scaled by a learned gate."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.sparsity.registry import Options, register

FEATURE = "pos"


class TagOptions(Options):
    drop: tuple[int, ...] = Field((1, 2), description="Tags whose positions are closed.")
    scale: tuple[int, ...] = Field((3,), description="Tags whose gates are learned, strictly between 0 and 1.")
    closed: Literal["zero", "mask"] = Field("zero", description="What closed positions become.")
    tags: int = Field(5, description="Number of tags.")


class TagFilter(MemoryFilter):
    """Gate 0 for tags to drop, sigmoid(w_tag + u . state) for tags to scale, 1 for all others."""

    requires = (FEATURE,)
    position_dependent = True

    def __init__(self, options: TagOptions, dimension: int) -> None:
        super().__init__()
        self.options = options
        self.bias = nn.Parameter(torch.zeros(options.tags))
        self.direction = nn.Parameter(torch.zeros(dimension))

    def forward(self, memory: Memory) -> Gates:
        assert bool((memory.positions >= 0).all()), "the engine promised that nothing was merged before this filter"
        tags = memory.features[FEATURE].gather(1, memory.positions)
        learned = torch.sigmoid(self.bias[tags] + memory.states.to(self.direction.dtype) @ self.direction)
        values = torch.where(_is_any(tags, self.options.scale), learned, torch.ones_like(learned))
        values = values.masked_fill(_is_any(tags, self.options.drop), 0.0)
        return Gates(values, self.options.closed, {"toy_openness": memory.source_mean(values)})


def _is_any(tags: torch.Tensor, wanted: tuple[int, ...]) -> torch.Tensor:
    return torch.isin(tags, torch.tensor(wanted, dtype=tags.dtype, device=tags.device))


@register(
    "memory",
    "toy_tags",
    options=TagOptions,
    requires=frozenset({FEATURE}),
    examples=({}, {"closed": "mask"}),
)
def build(options: TagOptions, *, dimension: int) -> TagFilter:
    return TagFilter(options, dimension)
