"""Attention from queries, keys and values to contexts, by three routes: fused, masked, and in bands.

All three compute the same function, which the conformance kit tests.
Shapes: B rows, H heads, Q queries, K keys, E head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsenmt.model.bands import (
    BandLayout,
    add_first,
    band_keys,
    band_layout,
    blocks,
    class_keys,
    classes,
    first_keys,
    heads_at_once,
    joined,
    overlapping,
    unclassed,
    with_first,
    without_first,
)
from sparsenmt.model.dropout import dropout as drop_out
from sparsenmt.model.operators import PYTORCH, Operators, at_least_single
from sparsenmt.model.sockets import Keys, Pattern, Transform
from sparsenmt.process.devices import may_hold


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


def attend_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    transform: Transform,
    dropout: float,
    operators: Operators = PYTORCH,
    *,
    causal: bool = False,
) -> Tensor:
    """(B, H, Q, E), by the transform's operator or a matrix of weights.

    ``keys`` must be restricted, but for causality if it is ``causal``.
    """
    context = transform.attend(q, k, v, keys, dropout, causal=causal)
    if context is not None:
        return context
    weights = weigh(q, k, restrict(keys, None, True) if causal else keys, transform).to(v.dtype)
    return drop_out(weights, dropout, operators.drop) @ v


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
    operators: Operators = PYTORCH,
) -> Tensor:
    """(B, H, Q, E) by one operator, for transforms that are a softmax after a bias.

    If ``keys.allowed`` is None, only causality hides keys.

    Args:
        mask: that of `memory_mask` for these keys; None: it is made here.
    """
    if mask is None:
        square = q.shape[2] == k.shape[2]  # otherwise PyTorch aligns a causal mask with the first key, not the last
        mask = make_mask(keys, transform, q.dtype, causal=causal, square=square)
    if mask is None:
        return operators.attend(q, k, v, None, dropout, causal)
    context = operators.attend(q, k, v, mask.scores, dropout, False)
    return context if mask.fully_masked is None else context.masked_fill(mask.fully_masked, 0.0)


def attend_banded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    transform: Transform,
    dropout: float,
    *,
    pattern: Pattern,
    causal: bool,
    operators: Operators = PYTORCH,
) -> Tensor:
    """(B, H, Q, E) in O(Q x reach): blocks of queries against the band of keys that they can reach.

    Queries and keys must be the same uncompacted positions, in order. ``keys`` is not restricted yet.
    """
    layout, length = band_layout(pattern, causal), q.shape[2]
    assert layout is not None and keys.counts is None
    reach = None if dropout or q.device.type != "cpu" else _window(keys, transform, pattern, causal)
    if reach is not None and (window := operators.attend_window(q, k, v, keys.valid, reach)) is not None:
        return window
    own, sides = without_first(keys, layout.first), (q, k, v)
    if layout.stride > 1:
        own = class_keys(own, layout.stride)
        sides = (classes(q, layout.stride), classes(k, layout.stride), classes(v, layout.stride))
    parts = (*sides, k[:, :, : layout.first], v[:, :, : layout.first])
    band = restrict(add_first(band_keys(own, layout), keys, layout.first), pattern, causal)
    if transform.fusable:
        context = _fused_bands(parts, band, transform, dropout, layout, operators)
    else:
        masked = attend_masked(*_in_bands(parts, layout), band, transform, dropout, operators)
        context = joined(masked, *sides[0].shape[::2])
    context = context if layout.stride == 1 else unclassed(context, layout.stride, length)
    if not layout.symmetric:
        return context
    q = q[:, :, : layout.first]
    keys = restrict(replace(keys, queries=keys.queries[:, : layout.first]), pattern, causal)
    if transform.fusable:
        ahead = attend_fused(q, k, v, keys, transform, dropout, causal=False, operators=operators)
    else:
        ahead = attend_masked(q, k, v, keys, transform, dropout, operators)
    # In the memory order of the next product, whose input has the heads of a position together.
    return torch.cat([ahead.transpose(1, 2), context[:, :, layout.first :].transpose(1, 2)], 1).transpose(1, 2)


def _in_bands(sides: Sequence[Tensor], layout: BandLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks of queries (B * n, H, b, E), and the keys and values (B * n, H, G + W, E) that each of them meets.

    Args:
        sides: queries, keys and values (B, H, L, E); keys and values (B, H, G, E) of the first positions.
    """
    q, k, v, first_k, first_v = sides
    return blocks(q, layout), with_first(overlapping(k, layout), first_k), with_first(overlapping(v, layout), first_v)


def _window(keys: Keys, transform: Transform, pattern: Pattern, causal: bool) -> tuple[int, int] | None:
    """The keys before and after its own position that a query sees, where these are all; None: others decide, too."""
    reach, at = pattern.reach, keys.positions
    if reach is None or not getattr(pattern, "contiguous", False) or first_keys(pattern) or not transform.fusable:
        return None
    if transform.score_bias(keys) is not None or not bool((at[:, 1:] - at[:, :-1] == 1).all()):
        return None
    return reach[0], 0 if causal else reach[1]


def _fused_bands(
    sides: Sequence[Tensor],
    band: Keys,
    transform: Transform,
    dropout: float,
    layout: BandLayout,
    operators: Operators,
) -> Tensor:
    """(B, H, Q, E), a few heads at a time, so that the gradients of their bands fit into memory that is reused.

    sides: as for `_in_bands`.
    """
    mask = make_mask(band, transform, sides[0].dtype, causal=False, square=False)
    assert mask is not None and mask.fully_masked is not None
    mask = mask if may_hold(mask.fully_masked) else replace(mask, fully_masked=None)
    size = heads_at_once(sides[1], layout)
    own = mask.scores.split(size, 1) if mask.scores.shape[1] > 1 else None
    contexts = []
    for i, some in enumerate(zip(*(x.split(size, 1) for x in sides), strict=True)):
        part, one = _in_bands(some, layout), mask if own is None else replace(mask, scores=own[i])
        context = attend_fused(*part, band, transform, dropout, causal=False, mask=one, operators=operators)
        contexts.append(joined(context, *sides[0].shape[::2]).transpose(1, 2))
    return (contexts[0] if len(contexts) == 1 else torch.cat(contexts, 2)).transpose(1, 2)
