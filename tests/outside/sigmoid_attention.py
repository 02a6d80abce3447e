"""Sigmoid attention: the weight of a key does not depend on the other keys, but for their number.

Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention": sigmoid(score + b) with
b = - log n for n visible keys, so that a row of equal scores begins with about the sum 1; here b has a learned part for
each head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register


class SigmoidAttention(Transform):
    """count * sigmoid(score + bias - log(number of visible positions))."""

    normalised = False

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(heads))

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        seen = keys.visible().to(scores.dtype)
        if keys.counts is not None:
            seen = seen * keys.counts[:, None, None, :].to(scores.dtype)
        number = seen.sum(-1, keepdim=True).clamp_min(1)  # of positions, of which a stand-in has several
        return seen * torch.sigmoid(scores + self.bias.to(scores.dtype)[:, None, None] - number.log())


@register("transform", "sigmoid")
def build(options: Options, *, site: str, heads: int) -> SigmoidAttention:
    return SigmoidAttention(heads)
