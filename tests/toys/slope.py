"""A score term with a bias of queries: a learned slope by distance, for each head, and a bias for the keys' content."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsenmt.model.sockets import ScoreTerm
from sparsenmt.sparsity.registry import Options, register


class Slope(ScoreTerm):
    """slope_h times the mean of the query times the root of the distance."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.linspace(-0.5, 0.5, heads))
        self.bias = nn.Parameter(torch.linspace(-0.2, 0.2, size))

    def content(self, q: Tensor) -> Tensor:
        return q + self.bias.to(q.dtype)

    def forward(self, q: Tensor, distances: Tensor) -> Tensor:
        roots = distances.abs().sqrt().to(q.dtype)
        return self.slopes.to(q.dtype)[:, None, None] * q.mean(-1, keepdim=True) * roots


@register("position", "toy_slope", refuses=("cross",))
def build(options: Options, *, site: str, heads: int, size: int, **place: Any) -> Slope:
    if site == "cross":
        raise ValueError("there are no distances")
    return Slope(heads, size)
