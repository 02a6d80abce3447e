"""Attention from queries, keys and values to contexts, by three routes: fused, masked, and in bands.

All three compute the same function, which the conformance kit tests.
Shapes: B rows, H heads, Q queries, K keys, E head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.bands import (
    BandLayout,
    band_keys,
    band_layout,
    blocks,
    class_keys,
    classes,
    heads_at_once,
    joined,
    overlapping,
    unclassed,
)
from sparsenmt.model.dropout import dropout as drop_out
from sparsenmt.model.sockets import Keys, Pattern, Transform
from sparsenmt.native.gradients import attend_short, attend_window
from sparsenmt.native.kernels import kernels
from sparsenmt.native.steps import HEAD_SIZES
from sparsenmt.process.devices import avoid_cudnn_attention, may_hold


def relative(queries: Tensor, positions: Tensor) -> Tensor:
    """queries (B, Q), positions (B, K) -> (B, 1, Q, K): distance of the key to the left of the query."""
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
    """Convert to fp32, unless the scores are float64."""
    return scores if scores.dtype == torch.float64 else scores.float()


def weigh(q: Tensor, k: Tensor, keys: Keys, transform: Transform) -> Tensor:
    """q (B, H, Q, E), k (B, H, K, E) -> attention mass (B, H, Q, K) in at least fp32.

    The products of bf16 inputs are formed in fp32: rounded to bf16, different scores would be equal, so that top-k
    would keep more keys than k, and the supports of sparsemax and entmax would change.
    """
    shape, q, k = q.shape[:2], at_least_single(q).flatten(0, 1), at_least_single(k).flatten(0, 1)
    # The product scales as well: from a length of 64 on, one more pass over the scores would be noticeable.
    scores = torch.baddbmm(q.new_zeros(()), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    mass: Tensor = transform(scores.unflatten(0, shape), keys)
    return mass


def attend_masked(q: Tensor, k: Tensor, v: Tensor, keys: Keys, transform: Transform, dropout: float) -> Tensor:
    """(B, H, Q, E), by a matrix of weights. ``keys`` must be restricted."""
    weights = weigh(q, k, keys, transform).to(v.dtype)
    return drop_out(weights, dropout) @ v


@dataclass(frozen=True)
class AttentionMask:
    """The term that a fused attention adds to its scores: the transform's bias, and minus infinity at hidden keys."""

    scores: Tensor  # broadcastable to (B, H, Q, K)
    fully_masked: Tensor | None  # bool, broadcastable to (B, H, Q, E): queries that see no key; None: there are none

    def select(self, rows: Tensor) -> AttentionMask:
        """Keep only these rows, in this order."""
        fully_masked = None if self.fully_masked is None else self.fully_masked.index_select(0, rows)
        return AttentionMask(self.scores.index_select(0, rows), fully_masked)


def make_mask(
    keys: Keys, transform: Transform, dtype: torch.dtype, *, causal: bool, square: bool
) -> AttentionMask | None:
    """The mask of a fused attention; None if only causality hides keys, with as many queries as keys (``square``)."""
    bias, allowed = transform.score_bias(keys) if transform.fusable else None, keys.allowed
    if allowed is None and bias is None and (square or not causal):
        return None
    if allowed is None:
        allowed = keys.valid[:, None, None, :]
    if causal:
        allowed = allowed & (relative(keys.queries, keys.positions) >= 0)
    fully_masked = ~allowed.any(-1, keepdim=True)  # torch versions disagree on the result of such rows
    zero = torch.zeros((), dtype=dtype, device=keys.valid.device)
    scores = torch.where(allowed, zero if bias is None else bias.to(dtype), -math.inf)
    return AttentionMask(scores.masked_fill(fully_masked, 0.0), fully_masked)


def memory_mask(keys: Keys, transform: Transform, dtype: torch.dtype) -> AttentionMask | None:
    """The mask of `make_mask`, for all queries that will ever read a memory; None also if each needs its own."""
    if transform.position_dependent:
        return None
    mask = make_mask(keys, transform, dtype, causal=False, square=False)
    if mask is None or mask.scores.shape[2] != 1:
        return None
    none = mask.fully_masked
    # In a search also a device is asked, once a memory: otherwise every step would mask its result.
    some = none is not None and (may_hold(none) if torch.is_grad_enabled() else bool(none.any()))
    return mask if some else replace(mask, fully_masked=None)


_FEW_QUERIES = 8  # a step of beam search


def reads_keys(size: int, keys: int) -> bool:
    """Return True if a compiled kernel, with heads of this size, attends to this many keys in a step of beam search."""
    found = kernels()
    return found is not None and size in HEAD_SIZES and found.faster("attention", size, _FEW_QUERIES, keys)


def _attend_compiled(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor | None:
    """(B, H, Q, E) by a compiled kernel; None if there is none for these tensors."""
    found = kernels()
    if found is None or not k.shape[2]:
        return None
    bias = None if mask is None else mask.scores
    same = bias is None or (bias.shape == (k.shape[0], 1, 1, k.shape[2]) and bias.is_contiguous())
    return found.attend(q, k, v, bias=bias) if same and found.attends(q, v) else None


def _attend_few(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
    """(B, H, Q, E) by plain products, which for few queries are faster on a CPU than the fused kernel."""
    scores = at_least_single(q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.add_(mask.scores)
    return torch.softmax(scores, -1).to(v.dtype) @ v


_MOST_PLAIN_SCORES = 1 << 24  # of a batch: 32 MB in bf16


def _plain_is_faster(q: Tensor, k: Tensor, dropout: float) -> bool:
    """Return True on a CPU with dropout, which the fused kernel lacks, or in bf16 training, where it is slower."""
    if q.device.type != "cpu":
        return False
    training = q.requires_grad and q.dtype == torch.bfloat16
    return dropout > 0 or (training and q.shape[:3].numel() * k.shape[2] <= _MOST_PLAIN_SCORES)


def _attend_plain(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, dropout: float, causal: bool) -> Tensor:
    """(B, H, Q, E) by plain products, with a matrix of weights."""
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
    mask: AttentionMask | None = None,
) -> Tensor:
    """(B, H, Q, E) by `scaled_dot_product_attention`, for transforms that are a softmax after a bias.

    If ``keys.allowed`` is None, only causality hides keys.

    Args:
        mask: that of `memory_mask` for these keys; None: it is made here.
    """
    if mask is None:
        square = q.shape[2] == k.shape[2]  # otherwise PyTorch aligns a causal mask with the first key, not the last
        mask = make_mask(keys, transform, q.dtype, causal=causal, square=square)
    short = None if dropout else attend_short(q, k, v, None if mask is None else mask.scores, causal and mask is None)
    if short is not None:
        return short if mask is None or mask.fully_masked is None else short.masked_fill(mask.fully_masked, 0.0)
    if _plain_is_faster(q, k, dropout):
        context = _attend_plain(q, k, v, mask, dropout, causal)
        return context if mask is None or mask.fully_masked is None else context.masked_fill(mask.fully_masked, 0.0)
    if q.device.type == "cuda":
        avoid_cudnn_attention()
    inference = q.device.type == "cpu" and not torch.is_grad_enabled()
    few = inference and q.shape[2] <= _FEW_QUERIES
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
    return context if mask.fully_masked is None else context.masked_fill(mask.fully_masked, 0.0)


def attend_banded(
    q: Tensor, k: Tensor, v: Tensor, keys: Keys, transform: Transform, dropout: float, *, pattern: Pattern, causal: bool
) -> Tensor:
    """(B, H, Q, E) in O(Q x reach): blocks of queries against the band of keys that they can reach.

    Queries and keys must be the same uncompacted positions. ``keys`` is not restricted yet.
    """
    layout, length = band_layout(pattern, causal), q.shape[2]
    assert layout is not None and keys.counts is None
    if not dropout and (window := _attend_window(q, k, v, keys, transform, pattern, causal)) is not None:
        return window
    if layout.stride > 1:
        keys = class_keys(keys, layout.stride)
        q, k, v = (classes(x, layout.stride) for x in (q, k, v))
    band = restrict(band_keys(keys, layout), pattern, causal)
    if transform.fusable:
        context = _fused_bands(q, k, v, band, transform, dropout, layout)
    else:
        parts = blocks(q, layout), overlapping(k, layout), overlapping(v, layout)
        context = joined(attend_masked(*parts, band, transform, dropout), *q.shape[::2])
    return context if layout.stride == 1 else unclassed(context, layout.stride, length)


def _attend_window(
    q: Tensor, k: Tensor, v: Tensor, keys: Keys, transform: Transform, pattern: Pattern, causal: bool
) -> Tensor | None:
    """`attend_banded` by a kernel of training; None if there is none for these tensors, or it is not faster."""
    reach, at = pattern.reach, keys.positions
    if reach is None or not getattr(pattern, "contiguous", False) or q.device.type != "cpu" or not transform.fusable:
        return None
    if transform.score_bias(keys) is not None or not bool((at[:, 1:] - at[:, :-1] == 1).all()):
        return None
    return attend_window(q, k, v, keys.valid, (reach[0], 0 if causal else reach[1]))


def _fused_bands(
    q: Tensor, k: Tensor, v: Tensor, band: Keys, transform: Transform, dropout: float, layout: BandLayout
) -> Tensor:
    """(B, H, Q, E), a few heads at a time, so that the gradients of their bands fit into memory that is reused."""
    mask = make_mask(band, transform, q.dtype, causal=False, square=False)
    assert mask is not None and mask.fully_masked is not None
    mask = mask if may_hold(mask.fully_masked) else replace(mask, fully_masked=None)
    size = heads_at_once(k, layout)
    own = mask.scores.split(size, 1) if mask.scores.shape[1] > 1 else None
    contexts = []
    for i, parts in enumerate(zip(*(x.split(size, 1) for x in (q, k, v)), strict=True)):
        part = blocks(parts[0], layout), overlapping(parts[1], layout), overlapping(parts[2], layout)
        one = mask if own is None else replace(mask, scores=own[i])
        context = attend_fused(*part, band, transform, dropout, causal=False, mask=one)
        contexts.append(joined(context, *q.shape[::2]).transpose(1, 2))
    return (contexts[0] if len(contexts) == 1 else torch.cat(contexts, 2)).transpose(1, 2)
