"""Top-k selective attention: a query attends to the k keys with the highest scores.

Zhao, Lin, Zhang, Su and Sun, "Extremely Sparse Transformer with Top-k Selective Attention", sections 4.1 and 4.2 (Eq. 5
to 12).
Shapes: B rows, H heads, Q queries, K keys.

Scores are scaled and masked; the k-th largest of a row is its threshold; the softmax is over the scores that reach it,
and only they get gradients (Eq. 12). As in the paper, scores that tie with the threshold are kept, so that a row may
keep more than k. Ties are not left to rounding: see `largest`.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from sparsenmt.model.sockets import Keys, SoftmaxKernel, Transform
from sparsenmt.process.devices import may_hold
from sparsenmt.sparsity.kth_largest import kth_largest
from sparsenmt.sparsity.registry import Options, register

TIE_TOLERANCE = 1e-5


class TopKOptions(Options):
    k: int = Field(8, ge=1, le=2**20, description="Number of keys that a query attends to; ties are kept.")


def largest(scores: Tensor, among: Tensor, k: int, counts: Tensor | None = None) -> Tensor:
    """(B, H, Q, K) bool: the keys with the k largest scores and those that tie with the last; all if there are fewer.

    A score ties with the k-th largest, t, if it is at most 1e-5 (1 + |t|) below it. Equal keys (encoder outputs that a
    filter zeroed) have scores that differ by rounding; this way they are kept or dropped together, like the one key
    that may stand in for them.

    Args:
        scores: (B, H, Q, K).
        among: bool, broadcastable to the scores: the keys that take part.
        counts: (B, K): the number of keys that a key stands for; it counts as many times among the k.
    """
    width = scores.shape[-1]
    if counts is None and k >= width:
        return among.expand_as(scores)
    hidden = scores.detach().masked_fill(~among, -math.inf)
    if counts is None:
        threshold = kth_largest(hidden, k)
    else:  # a key that takes part stands for one at least, so that k keys are enough
        values, order = hidden.topk(min(k, width), -1)
        taken = counts[:, None, None, :].expand_as(scores).gather(-1, order).cumsum(-1)
        last = (taken < k).sum(-1, keepdim=True).clamp_max(values.shape[-1] - 1)
        threshold = values.gather(-1, last)
    floor = threshold - TIE_TOLERANCE * (1 + threshold.abs())
    return hidden >= floor.clamp_min(torch.finfo(scores.dtype).min)  # fewer than k: all that take part


def softmax_among(scores: Tensor, kept: Tensor, keys: Keys) -> Tensor:
    """(B, H, Q, K): the counted softmax over the keys that are ``kept``, at least one of them visible.

    Fully masked rows are zero.
    """
    fully_masked = ~keys.visible().any(-1, keepdim=True)
    # Added, not filled in: then it costs nothing in the backward pass.
    bias = torch.where(kept | fully_masked, 0.0, -math.inf).to(scores.dtype)
    if keys.counts is not None:
        bias = bias + keys.counts.clamp_min(1e-30).log()[:, None, None, :].to(scores.dtype)
    mass = torch.softmax(scores + bias, -1)
    return mass.masked_fill(fully_masked, 0.0) if may_hold(fully_masked) else mass


class TopK(Transform):
    """The counted softmax over the k largest scores of the visible keys."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        return softmax_among(scores, largest(scores, keys.visible(), self.k, keys.counts), keys)

    def softmax_kernel(self) -> SoftmaxKernel:
        return SoftmaxKernel(self.k, TIE_TOLERANCE)


@register("transform", "topk", options=TopKOptions, examples=({"k": 2}, {"k": 4}))
def build(options: TopKOptions, *, site: str, heads: int) -> TopK:
    return TopK(options.k)
