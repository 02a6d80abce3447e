"""A pattern with a `reach`: a window that is not symmetric."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.registry import Options, register


class LookbackOptions(Options):
    left: int = Field(4, ge=0, description="Keys seen to the left.")
    right: int = Field(1, ge=0, description="Keys seen to the right.")


class Lookback:
    """A query sees ``left`` keys before it and ``right`` keys after it, but never one at a distance of 2."""

    def __init__(self, left: int, right: int) -> None:
        self.reach = (left, right)

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        back = queries[:, None, :, None] - positions[:, None, None, :]
        return (back <= self.reach[0]) & (back >= -self.reach[1]) & (back != 2)


@register("pattern", "toy_lookback", options=LookbackOptions, examples=({}, {"left": 1, "right": 3}))
def build(options: LookbackOptions, *, site: str) -> Lookback:
    return Lookback(options.left, 0 if site == "decoder_self" else options.right)
