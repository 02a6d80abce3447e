"""Softmax attention weights (Vaswani et al. 2017), with counted keys.

A key that stands for c equal keys gets c times the mass of one: log c is added to its score.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register


class Softmax(Transform):
    """exp(score) * count, normalised over the visible keys."""

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        bias = self.score_bias(keys)
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        visible = keys.visible()
        weights = torch.softmax(scores.masked_fill(~visible, -math.inf), -1)
        # A fully masked row is NaN; its keys are not visible, so their weights become 0.
        return weights.masked_fill(~visible, 0.0)

    def score_bias(self, keys: Keys) -> Tensor | None:
        return None if keys.counts is None else keys.counts.clamp_min(1e-30).log()[:, None, None, :]


@register("transform", "softmax")
def build(options: Options, *, site: str, heads: int) -> Softmax:
    return Softmax()
