"""A memory filter that keeps the encoder outputs with the largest norms, before the final normalisation.

Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms", find that norms tell
which tokens matter; after a normalisation all are about the same.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.sparsity.registry import Options, register

_TIE = 1e-5  # of a norm: equal states may differ in their last digits


class NormQuantileOptions(Options):
    keep: float = Field(0.7, gt=0, le=1, description="Share of the positions of a sentence that are kept, at least.")
    closed: Literal["zero", "mask"] = Field("zero", description="What closed positions become.")


class NormQuantile(MemoryFilter):
    """Gate 1 for the largest norms, up to the share ``keep`` of the positions and for all of an equal norm; else 0."""

    def __init__(self, options: NormQuantileOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, memory: Memory) -> Gates:
        states = memory.before_norm
        norms = torch.linalg.vector_norm(states.to(torch.promote_types(states.dtype, torch.float32)), dim=-1)
        norms = norms.masked_fill(~memory.valid, -1)  # (B, S')
        ordered, order = norms.sort(dim=1, descending=True)
        counts = (memory.written_counts() * memory.valid).gather(1, order)  # positions, of which a stand-in has several
        wanted = (self.options.keep * counts.sum(1, keepdim=True)).ceil()
        last = (counts.cumsum(1) < wanted).sum(1, keepdim=True).clamp_max(norms.shape[1] - 1)
        kept = memory.valid & (norms >= (1 - _TIE) * ordered.gather(1, last))
        return Gates(kept.to(memory.states.dtype), self.options.closed)


@register(
    "memory",
    "norm_quantile",
    options=NormQuantileOptions,
    examples=({"keep": 0.6}, {"keep": 0.5, "closed": "mask"}),
)
def build(options: NormQuantileOptions, *, dimension: int) -> NormQuantile:
    return NormQuantile(options)
