"""A transform with one learned parameter a head. It has no `score_bias`, so that it takes the general route."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register


class Temperature(Transform):
    """softmax(score * exp(s_h)) with a learned s_h for each head h; counts weigh after the scaling."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.linspace(-0.5, 0.5, heads))

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        visible = keys.visible()
        scores = scores * self.sharpness.to(scores.dtype).exp()[:, None, None]
        scores = scores.masked_fill(~visible, -math.inf)
        top = scores.detach().amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        mass = (scores - top).exp()
        if keys.counts is not None:
            mass = mass * keys.counts[:, None, None, :]
        mass = mass.masked_fill(~visible, 0.0)
        return mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)


@register("transform", "toy_temperature")
def build(options: Options, *, site: str, heads: int) -> Temperature:
    return Temperature(heads)
