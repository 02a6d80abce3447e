"""A pattern without a `reach` that depends on what is visible: it must not depend on padding or on the future."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.registry import Options, register


class ScatteredOptions(Options):
    k: int = Field(3, ge=1, description="Keys seen.")


class Scattered:
    """The k visible keys with the smallest hash of (query, key)."""

    reach = None

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        mixed = queries[:, None, :, None] * 73_856_093 + positions[:, None, None, :] * 19_349_663 + 83_492_791
        mixed = (mixed ^ (mixed >> 13)) * 1_274_126_177 % 2_147_483_647
        mixed, visible = torch.broadcast_tensors(mixed, visible)
        mixed = mixed.masked_fill(~visible, 2**31)
        last = mixed.topk(min(self.k, mixed.shape[-1]), dim=-1, largest=False).values[..., -1:]
        return (mixed <= last) & visible


@register("pattern", "toy_scattered", options=ScatteredOptions)
def build(options: ScatteredOptions, *, site: str) -> Scattered:
    return Scattered(options.k)
