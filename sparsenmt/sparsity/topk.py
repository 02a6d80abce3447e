"""Top-k selective attention: a query attends to the k keys with the highest scores.

Zhao, Lin, Zhang, Su and Sun, "Extremely Sparse Transformer with Top-k Selective Attention", sections 4.1 and 4.2 (Eq. 5
to 12).
Shapes: B rows, H heads, Q queries, K keys.

Scores are scaled and masked; the k-th largest of a row is its threshold; the softmax runs over the scores that reach
it, and gradients flow through them only (Eq. 12). As in the paper, all scores that are as large as the threshold are
kept, so that a row may keep more than k. What is "as large" is not left to rounding: see `largest`.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register
from sparsenmt.sparsity.selection import kth_largest

TIE = 1e-5


class TopKOptions(Options):
    k: int = Field(8, ge=1, le=2**20, description="Keys that a query attends to; ties are kept.")


def largest(scores: Tensor, among: Tensor, k: int, counts: Tensor | None = None) -> Tensor:
    """(B, H, Q, K) bool: the keys whose score is the k-th largest or more, all of them where there are no k.

    A score ties with the k-th largest, t, if it lies at most 1e-5 (1 + |t|) below it: keys that are equal (encoder
    outputs that a filter zeroed) have scores that differ by a rounding, and are kept or left out together, as is the
    one key that may stand in for them.

    Args:
        scores: (B, H, Q, K).
        among: bool, broadcastable to the scores: the keys that take part.
        counts: (B, K), for how many keys a key stands: so many places does it take.
    """
    width = scores.shape[-1]
    if counts is None and k >= width:
        return among.expand_as(scores)
    hidden = scores.detach().masked_fill(~among, -math.inf)
    if counts is None:
        threshold = kth_largest(hidden, k)
    else:  # whatever takes part stands for one key at least: the first k entries fill the k places
        values, order = hidden.topk(min(k, width), -1)
        places = counts[:, None, None, :].expand_as(scores).gather(-1, order).cumsum(-1)
        last = (places < k).sum(-1, keepdim=True).clamp_max(values.shape[-1] - 1)
        threshold = values.gather(-1, last)
    floor = threshold - TIE * (1 + threshold.abs())
    return hidden >= floor.clamp_min(torch.finfo(scores.dtype).min)  # fewer than k: all that are not hidden


def softmax_among(scores: Tensor, kept: Tensor, keys: Keys) -> Tensor:
    """(B, H, Q, K): the counted softmax over the keys that are ``kept``, among them one at least that is visible.

    Rows that see nothing are zero.
    """
    blind = ~keys.visible().any(-1, keepdim=True)
    # Added rather than filled in: backward then has nothing to do for it.
    bias = torch.where(kept | blind, 0.0, -math.inf).to(scores.dtype)
    if keys.counts is not None:
        bias = bias + keys.counts.clamp_min(1e-30).log()[:, None, None, :].to(scores.dtype)
    mass = torch.softmax(scores + bias, -1)
    return mass.masked_fill(blind, 0.0) if bool(blind.any()) else mass


class TopK(Transform):
    """Softmax over the k largest scores of the visible keys, which counts weigh."""

    places: int

    def __init__(self, k: int) -> None:
        super().__init__()
        self.places = k

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        return softmax_among(scores, largest(scores, keys.visible(), self.places, keys.counts), keys)


@register("transform", "topk", options=TopKOptions, examples=({"k": 2}, {"k": 4}))
def build(options: TopKOptions, *, site: str, heads: int) -> TopK:
    return TopK(options.k)
