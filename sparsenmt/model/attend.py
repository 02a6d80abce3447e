"""From queries, keys and values to contexts: fused, masked, or in bands.

All three compute the same function; the conformance kit holds them together.
Shapes: B rows, H heads, Q queries, K keys, E head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.bands import (
    Cut,
    band_keys,
    blocks,
    class_keys,
    classes,
    cut_of,
    heads_at_once,
    joined,
    overlapping,
    unclassed,
)
from sparsenmt.model.dropout import dropout as drop_out
from sparsenmt.model.sockets import Keys, Pattern, Transform
from sparsenmt.native.kernels import kernels


def relative(queries: Tensor, positions: Tensor) -> Tensor:
    """queries (B, Q), positions (B, K) -> (B, 1, Q, K): how far to the left of the query the key lies."""
    return queries[:, None, :, None] - positions[:, None, None, :]


def restrict(keys: Keys, pattern: Pattern | None, causal: bool) -> Keys:
    """``keys`` with ``allowed`` filled in: padding, causality and the pattern together."""
    visible = keys.valid[:, None, None, :]
    if causal:
        visible = visible & (relative(keys.queries, keys.positions) >= 0)
    if pattern is not None:
        visible = visible & pattern(keys.queries, keys.positions, visible)
    return replace(keys, allowed=visible)


def at_least_single(scores: Tensor) -> Tensor:
    """In fp32, or in float64 where that is what comes."""
    return scores if scores.dtype == torch.float64 else scores.float()


def weigh(q: Tensor, k: Tensor, keys: Keys, transform: Transform) -> Tensor:
    """q (B, H, Q, E), k (B, H, K, E) -> attention mass (B, H, Q, K) in at least fp32."""
    # One product that scales as well: at lengths of 64 and more a pass over the scores is a part of the time.
    nothing, upright = q.new_zeros(()), k.flatten(0, 1).transpose(1, 2)
    scores = torch.baddbmm(nothing, q.flatten(0, 1), upright, beta=0, alpha=q.shape[-1] ** -0.5)
    mass: Tensor = transform(at_least_single(scores.unflatten(0, q.shape[:2])), keys)
    return mass


def attend_masked(q: Tensor, k: Tensor, v: Tensor, keys: Keys, transform: Transform, dropout: float) -> Tensor:
    """(B, H, Q, E): weights as a matrix. ``keys`` must be restricted."""
    weights = weigh(q, k, keys, transform).to(v.dtype)
    return drop_out(weights, dropout) @ v


@dataclass(frozen=True)
class Mask:
    """What a fused attention adds to its scores: the transform's bias, and minus infinity at hidden keys."""

    scores: Tensor  # broadcastable to (B, H, Q, K)
    blind: Tensor | None  # bool, broadcastable to (B, H, Q, E): queries that see nothing; None: there are none

    def select(self, rows: Tensor) -> Mask:
        """Only these rows, in this order."""
        return Mask(self.scores.index_select(0, rows), None if self.blind is None else self.blind.index_select(0, rows))


def make_mask(keys: Keys, transform: Transform, dtype: torch.dtype, *, causal: bool, square: bool) -> Mask | None:
    """The mask of a fused attention; None if nothing but causality, at equally many queries and keys, needs one."""
    bias, allowed = transform.score_bias(keys) if transform.fusable else None, keys.allowed
    if allowed is None and bias is None and (square or not causal):
        return None
    if allowed is None:
        allowed = keys.valid[:, None, None, :]
    if causal:
        allowed = allowed & (relative(keys.queries, keys.positions) >= 0)
    blind = ~allowed.any(-1, keepdim=True)  # torch versions disagree on what sees nothing
    zero = torch.zeros((), dtype=dtype, device=keys.valid.device)
    scores = torch.where(allowed, zero if bias is None else bias.to(dtype), -math.inf)
    return Mask(scores.masked_fill(blind, 0.0), blind)


def memory_mask(keys: Keys, transform: Transform, dtype: torch.dtype) -> Mask | None:
    """As `make_mask`, for all queries that will ever read a memory; None also where they need masks of their own."""
    if transform.position_dependent:
        return None
    mask = make_mask(keys, transform, dtype, causal=False, square=False)
    if mask is None or mask.scores.shape[2] != 1:
        return None
    return mask if bool(mask.blind is not None and mask.blind.any()) else replace(mask, blind=None)


_FEW = 8  # queries: a step of a beam


def _attend_compiled(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor | None:
    """(B, H, Q, E) by a compiled kernel, where there is one for these."""
    found = kernels()
    if found is None or not found.attends(q, v) or not k.shape[2]:
        return None
    if mask is None:
        return found.attend(q, k, v)
    same = mask.scores.shape == (k.shape[0], 1, 1, k.shape[2])  # for all heads and queries of a row
    return found.attend(q, k, v, bias=mask.scores) if same and mask.scores.is_contiguous() else None


def _attend_few(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
    """(B, H, Q, E) by plain products, for which a CPU needs less time a head than the fused kernel."""
    scores = at_least_single(q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.add_(mask.scores)
    return torch.softmax(scores, -1).to(v.dtype) @ v


_PLAIN = 1 << 24  # scores of a batch, at most 32 MB


def _plain_is_faster(q: Tensor, k: Tensor, dropout: float) -> bool:
    """On a CPU the fused kernel has no dropout, and its backward pass in bf16 is slower than plain products."""
    if q.device.type != "cpu":
        return False
    training = q.requires_grad and q.dtype == torch.bfloat16
    return dropout > 0 or (training and q.shape[:3].numel() * k.shape[2] <= _PLAIN)


def _attend_plain(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, dropout: float, causal: bool) -> Tensor:
    """(B, H, Q, E) by plain products, with weights as a matrix."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores + mask.scores.to(scores.dtype)
    elif causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return drop_out(torch.softmax(scores, -1), dropout) @ v


def attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    transform: Transform,
    dropout: float,
    *,
    causal: bool,
    mask: Mask | None = None,
) -> Tensor:
    """(B, H, Q, E) by `scaled_dot_product_attention`, for transforms that are a softmax after a bias.

    With ``keys.allowed`` None nothing but causality is hidden.

    Args:
        mask: what `memory_mask` made of these keys; None: it is made here.
    """
    if mask is None:
        square = q.shape[2] == k.shape[2]  # otherwise PyTorch aligns a causal mask with the first key, not the last
        mask = make_mask(keys, transform, q.dtype, causal=causal, square=square)
    if _plain_is_faster(q, k, dropout):
        context = _attend_plain(q, k, v, mask, dropout, causal)
        return context if mask is None or mask.blind is None else context.masked_fill(mask.blind, 0.0)
    inference = q.device.type == "cpu" and not torch.is_grad_enabled()
    few = inference and q.shape[2] <= _FEW
    if mask is None and causal:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    compiled = _attend_compiled(q, k, v, mask) if inference else None
    if compiled is not None:
        context = compiled
    elif few:
        context = _attend_few(q, k, v, mask)
    else:
        scores = None if mask is None else mask.scores
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=scores, dropout_p=dropout)
    if mask is None:
        return context
    return context if mask.blind is None else context.masked_fill(mask.blind, 0.0)


def attend_banded(
    q: Tensor, k: Tensor, v: Tensor, keys: Keys, transform: Transform, dropout: float, *, pattern: Pattern, causal: bool
) -> Tensor:
    """(B, H, Q, E) in O(Q x reach): blocks of queries against the band of keys that they can reach.

    Queries and keys must be the same uncompacted positions. ``keys`` is not restricted yet.
    """
    cut, length = cut_of(pattern, causal), q.shape[2]
    assert cut is not None and keys.counts is None
    if cut.stride > 1:
        keys = class_keys(keys, cut.stride)
        q, k, v = (classes(x, cut.stride) for x in (q, k, v))
    band = restrict(band_keys(keys, cut), pattern, causal)
    if transform.fusable:
        context = _fused_bands(q, k, v, band, transform, dropout, cut)
    else:
        parts = blocks(q, cut), overlapping(k, cut), overlapping(v, cut)
        context = joined(attend_masked(*parts, band, transform, dropout), *q.shape[::2])
    return context if cut.stride == 1 else unclassed(context, cut.stride, length)


def _fused_bands(q: Tensor, k: Tensor, v: Tensor, band: Keys, transform: Transform, dropout: float, cut: Cut) -> Tensor:
    """(B, H, Q, E), a few heads at a time: the gradients of their bands then fit into memory that is used again."""
    mask = make_mask(band, transform, q.dtype, causal=False, square=False)
    assert mask is not None and mask.blind is not None
    mask = mask if bool(mask.blind.any()) else replace(mask, blind=None)
    size = heads_at_once(k, cut)
    own = mask.scores.split(size, 1) if mask.scores.shape[1] > 1 else None
    contexts = []
    for i, parts in enumerate(zip(*(x.split(size, 1) for x in (q, k, v)), strict=True)):
        part = blocks(parts[0], cut), overlapping(parts[1], cut), overlapping(parts[2], cut)
        one = mask if own is None else replace(mask, scores=own[i])
        context = attend_fused(*part, band, transform, dropout, causal=False, mask=one)
        contexts.append(joined(context, *q.shape[::2]).transpose(1, 2))
    return (contexts[0] if len(contexts) == 1 else torch.cat(contexts, 2)).transpose(1, 2)
