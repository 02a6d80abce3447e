"""Softmax with a sink: a learned score for each head that takes a part of the weight, and has no value.

As in gpt-oss (OpenAI 2025); with a sink of 0 the "softmax one" of Miller 2023. A head that finds nothing gives nothing.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register


class SinkOptions(Options):
    start: float = Field(0.0, allow_inf_nan=False, description="Score of the sink before training.")


class SinkSoftmax(Transform):
    """exp(score) * count over exp(sink) and the sum of these; weights sum to less than 1."""

    normalised = False

    def __init__(self, options: SinkOptions, heads: int) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.full((heads,), options.start))

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        if keys.counts is not None:
            scores = scores + keys.counts.clamp_min(1e-30).log()[:, None, None, :].to(scores.dtype)
        sink = self.sinks.to(scores.dtype)[:, None, None]
        scores = scores.masked_fill(~keys.visible(), -math.inf)
        top = torch.maximum(scores.detach().amax(-1, keepdim=True), sink.detach())  # finite where nothing is visible
        mass = (scores - top).exp()
        return mass / (mass.sum(-1, keepdim=True) + (sink - top).exp())

    def logged(self) -> dict[str, Tensor]:
        return {"sink": self.sinks}


@register("transform", "softmax_sink", options=SinkOptions, examples=({}, {"start": 1.5}))
def build(options: SinkOptions, *, site: str, heads: int) -> SinkSoftmax:
    return SinkSoftmax(options, heads)
