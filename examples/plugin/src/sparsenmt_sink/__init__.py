"""Softmax attention with a sink: a part of each query's weight goes to no key.

Attention of trained Transformers often rests on a token without meaning when there is nothing to attend to (Xiao et al.
2024, "Efficient Streaming Language Models with Attention Sinks"). Here each head has a sink of its own: a learned score
that takes part in the softmax, and has no value.
Shapes: B sentences, H heads, Q queries, K keys.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register


class SinkOptions(Options):
    """The keys beside ``name`` in a recipe."""

    start: float = Field(0.0, allow_inf_nan=False, description="Score of the sinks at the start.")


@register("transform", "sink", options=SinkOptions, examples=({}, {"start": 1.5}))
class Sink(Transform):
    """exp(score) * count over the sum of these for all keys and of exp(sink): rows sum to less than 1."""

    normalised = False

    def __init__(self, options: SinkOptions, *, site: str, heads: int) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.full((heads,), options.start))

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        """scores (B, H, Q, K) -> weights (B, H, Q, K)."""
        if keys.counts is not None:  # a key that stands for c others weighs as much as they
            scores = scores + keys.counts.clamp_min(1e-30).log()[:, None, None, :].to(scores.dtype)
        scores = scores.masked_fill(~keys.visible(), -torch.inf)
        sink = self.sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        # A query that sees no key has the sink alone, and weights of 0.
        return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
