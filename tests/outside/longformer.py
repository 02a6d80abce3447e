"""Window attention with global positions: the pattern of the Longformer, and of the encoder of LED.

Beltagy, Peters and Cohan 2020, "Longformer: The Long-Document Transformer", sections 3.1 and 3.2.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.registry import Options, register


class LongformerOptions(Options):
    window: int = Field(512, ge=1, description="Keys around a query that it sees, its own included.")
    first: int = Field(1, ge=0, description="Positions at the beginning that are seen by all queries and see all keys.")


class Longformer:
    """A query sees its neighbours and the first positions; a query at one of these sees everything that is visible."""

    def __init__(self, options: LongformerOptions, *, causal: bool) -> None:
        before = options.window - 1 if causal else options.window // 2
        self.reach = (before, options.window - 1 - before)
        self.first = options.first

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        back = queries[:, None, :, None] - positions[:, None, None, :]
        near = (back <= self.reach[0]) & (back >= -self.reach[1])
        from_first, to_first = queries < self.first, positions < self.first
        return near | from_first[:, None, :, None] | to_first[:, None, None, :]


@register(
    "pattern",
    "longformer",
    options=LongformerOptions,
    examples=({"window": 5, "first": 2}, {"window": 4, "first": 0}),
    refuses=("cross",),
)
def build(options: LongformerOptions, *, site: str) -> Longformer:
    return Longformer(options, causal=site == "decoder_self")
