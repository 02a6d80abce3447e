"""A transform that is a softmax after adding a bias: it may be fused, and it depends on positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register


class Recency(Transform):
    """softmax(score - slope_h * |query - key|) with a learned slope for each head h (the bias of Press et al. 2022)."""

    position_dependent = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.linspace(0.1, 0.5, heads))

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        visible = keys.visible()
        scores = (scores + self.score_bias(keys).to(scores.dtype)).masked_fill(~visible, -math.inf)
        return torch.softmax(scores, -1).masked_fill(~visible, 0.0)

    def score_bias(self, keys: Keys) -> Tensor:
        distance = (keys.queries[:, None, :, None] - keys.positions[:, None, None, :]).abs()
        bias = -self.slopes[:, None, None] * distance
        return bias if keys.counts is None else bias + keys.counts.clamp_min(1e-30).log()[:, None, None, :]


@register("transform", "toy_recency")
def build(options: Options, *, site: str, heads: int) -> Recency:
    return Recency(heads)
