"""From queries, keys and values to contexts: fused, masked, or in bands.

All three compute the same function; the conformance kit holds them together.
Shapes: B rows, H heads, Q queries, K keys, E head size, n blocks of b queries, W keys of a band.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.interfaces import Keys, Pattern, Transform


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
    scores = at_least_single(q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    mass: Tensor = transform(scores, keys)
    return mass


def attend_masked(q: Tensor, k: Tensor, v: Tensor, keys: Keys, transform: Transform, dropout: float) -> Tensor:
    """(B, H, Q, E): weights as a matrix. ``keys`` must be restricted."""
    weights = weigh(q, k, keys, transform).to(v.dtype)
    return (F.dropout(weights, dropout) if dropout else weights) @ v


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
    bias, allowed = transform.score_bias(keys), keys.allowed
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


def _attend_few(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """(B, H, Q, E) by plain products, for which a CPU needs less time a head than the fused kernel."""
    scores = at_least_single(q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5).add_(mask.scores)
    return torch.softmax(scores, -1).to(v.dtype) @ v


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
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
    if keys.counts is not None and q.shape[2] <= _FEW and not dropout and q.device.type == "cpu":
        context = _attend_few(q, k, v, mask)
    else:
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.scores, dropout_p=dropout)
    return context if mask.blind is None else context.masked_fill(mask.blind, 0.0)


def band_block(reach: tuple[int, int]) -> int:
    """Queries of one block: as many as keys are seen on both sides keeps half of a band's scores useful."""
    return min(max(sum(reach), 16), 256)


def attend_banded(
    q: Tensor, k: Tensor, v: Tensor, keys: Keys, transform: Transform, dropout: float, *, pattern: Pattern, causal: bool
) -> Tensor:
    """(B, H, Q, E) in O(Q x reach): blocks of queries against the band of keys that they can reach.

    Queries and keys must be the same uncompacted positions. ``keys`` is not restricted yet.
    """
    assert pattern.reach is not None and keys.counts is None
    left, right = pattern.reach[0], 0 if causal else pattern.reach[1]
    b = band_block((left, right))
    rows, _, length, _ = q.shape
    n = -(-length // b)
    tail = n * b - length

    def blocks(x: Tensor) -> Tensor:  # (B, H, Q, E) -> (B * n, H, b, E)
        split: Tensor = F.pad(x, (0, 0, 0, tail)).unflatten(2, (n, b))
        return split.transpose(1, 2).flatten(0, 1)

    def bands(x: Tensor) -> Tensor:  # (B, H, K, E) -> (B * n, H, W, E)
        x = F.pad(x, (0, 0, left, right + tail)).unfold(2, left + b + right, b)
        return x.permute(0, 2, 1, 4, 3).flatten(0, 1)

    def flat_bands(x: Tensor, fill: int | bool) -> Tensor:  # (B, K) -> (B * n, W)
        return F.pad(x.expand(rows, -1), (left, right + tail), value=fill).unfold(1, left + b + right, b).flatten(0, 1)

    queries = F.pad(keys.queries.expand(rows, -1), (0, tail), value=-(2**30)).unflatten(1, (n, b)).flatten(0, 1)
    band = Keys(
        valid=flat_bands(keys.valid, False),
        queries=queries,
        positions=flat_bands(keys.positions, -(2**29)),
        features={name: feature.repeat_interleave(n, 0) for name, feature in keys.features.items()},
    )
    band = restrict(band, pattern, causal)
    context = attend_masked(blocks(q), bands(k), bands(v), band, transform, dropout)
    split: Tensor = context.unflatten(0, (rows, n))
    return split.transpose(1, 2).flatten(2, 3)[:, :, :length]
