"""Self-attention with terms and factors that depend on the distance between query and key.

Queries and keys are consecutive positions: the distance of key j from query i is ``first`` + i - j.
Shapes: B rows, H heads, Q queries, K keys, E head size, N distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsenmt.model.attend import restrict
from sparsenmt.model.bands import BandLayout, band_keys, blocks, first_keys, joined, overlapping
from sparsenmt.model.dropout import Drop
from sparsenmt.model.dropout import dropout as drop_out
from sparsenmt.model.operators import PYTORCH, Operators, at_least_single
from sparsenmt.model.sockets import Keys, Pattern, ScoreTerm, Span, Transform
from sparsenmt.process.devices import may_hold

_BLOCKS = ((96, 32), (1 << 62, 128))  # (keys beyond the ends of a block, at most; block size)
_OVERHEAD = 48  # cost of copying to blocks, in keys


@dataclass(frozen=True)
class DistanceSockets:
    """The sockets of a self-attention step that has a score term or a span."""

    transform: Transform
    pattern: Pattern | None
    position: ScoreTerm | None
    span: Span | None
    causal: bool
    banded: bool = True

    @property
    def by_distance(self) -> bool:
        """True if scores or weights depend on distances."""
        return self.position is not None or self.span is not None

    @property
    def reach(self) -> tuple[int, int] | None:
        """The largest distances to the left and to the right at which a key is seen; None: no bound.

        A pattern without a reach may choose among all visible keys, so that none can be left out beside it. Beside one
        that also shows the first keys, a span alone is a bound.
        """
        if self.pattern is not None and self.pattern.reach is None:
            return None
        bounds = [] if self.span is None else [(self.span.reach, 0 if self.causal else self.span.reach)]
        if self.pattern is not None and self.pattern.reach is not None and not first_keys(self.pattern):
            bounds.append((self.pattern.reach[0], 0 if self.causal else self.pattern.reach[1]))
        return (min(left for left, _ in bounds), min(right for _, right in bounds)) if bounds else None


class _Shift(torch.autograd.Function):
    """(B, H, Q, N) by distances, falling, -> (B, H, Q, K) by keys: row i begins at column Q - 1 - i.

    A view, as rows of N - 1 numbers of the same buffer. N is at least K + 1, so that no two results share a number.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: int) -> Tensor:
        ctx.shape, ctx.keys = x.shape, keys
        return _shifted(x.contiguous(), keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        result = gradient.new_zeros(ctx.shape)
        _shifted(result, ctx.keys).copy_(gradient)
        return result, None


def _shifted(x: Tensor, keys: int) -> Tensor:
    rows, heads, queries, count = x.shape
    strides = (heads * queries * count, queries * count, count - 1, 1)
    return x.as_strided((rows, heads, queries, keys), strides, x.storage_offset() + queries - 1)


def _scores(q: Tensor, k: Tensor, position: ScoreTerm | None, first: int, causal: bool) -> Tensor:
    """(B, H, Q, K): the scaled product of queries and keys, and the term."""
    rows, heads, queries, size = q.shape
    keys, scale = k.shape[2], size**-0.5
    if position is None:
        term, beta = q.new_zeros(()), 0.0
    else:
        lowest = 0 if causal else first - keys + 1
        falling = torch.arange(first + queries - 1, lowest - 1, -1, device=q.device)
        by_distance = position(q, torch.cat([falling, falling[-1:]]))  # one more, which no visible key has
        shifted: Tensor = _Shift.apply(by_distance, keys)  # type: ignore[no-untyped-call]
        term, beta = shifted.flatten(0, 1), scale
        q = position.content(q)
    product = torch.baddbmm(term, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=beta, alpha=scale)
    return product.view(rows, heads, queries, keys)


def _factors(span: Span, first: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """(H, Q, K): the factors of a span, by keys."""
    own = torch.arange(first, first + queries, device=device)
    factors: Tensor = span((own[:, None] - torch.arange(keys, device=device)).abs())
    return factors


def distance_weights(
    q: Tensor, k: Tensor, keys: Keys, sockets: DistanceSockets, *, first: int | None = None, exact: bool = True
) -> tuple[Tensor, Keys]:
    """q (B, H, Q, E), k (B, H, K, E), keys restricted -> weights (B, H, Q, K), and the keys within the span.

    Args:
        keys: of all rows, or of n rows that stand for B / n each.
        first: the distance of the first key from the first query; None: queries are the last of the keys.
        exact: form scores in at least fp32; False where a softmax follows, which bf16 training rounds anyway.
    """
    transform, span = sockets.transform, sockets.span
    first = k.shape[2] - q.shape[2] if first is None else first
    if exact or not transform.fusable:
        q, k = at_least_single(q), at_least_single(k)
    scores = _scores(q, k, sockets.position, first, sockets.causal)
    factors = None if span is None else _factors(span, first, q.shape[2], k.shape[2], scores.device)
    if factors is not None:
        keys = replace(keys, allowed=keys.visible() & (factors > 0))
    before = factors if span is not None and span.on == "scores" else None
    if transform.fusable:
        mass = _softmax(scores, keys, transform, before)
    else:
        if before is not None:
            scores = scores + _logarithm(before).to(scores.dtype)
        mass = transform(scores, _for_rows(keys, len(scores)))
    if factors is not None and before is None:
        mass = mass * factors.to(mass.dtype)
        if transform.normalised:
            total = mass.sum(-1, keepdim=True)
            mass = mass / total.masked_fill(total == 0, 1.0)  # fully masked rows
    return mass, keys


def _logarithm(factors: Tensor) -> Tensor:
    """The logarithm, 0 at factors of 0: these keys are hidden."""
    return torch.where(factors > 0, factors, 1.0).log()


def _for_rows(keys: Keys, rows: int) -> Keys:
    """The keys of all rows, where one row or n rows stand for all."""
    visible = keys.visible()
    if len(visible) in (1, rows):
        return keys
    return replace(keys, allowed=visible.repeat(rows // len(visible), 1, 1, 1))


def _softmax(scores: Tensor, keys: Keys, transform: Transform, factors: Tensor | None) -> Tensor:
    """The transform that is a softmax after a bias, with the factors; fully masked rows are zero."""
    visible, bias = keys.visible(), transform.score_bias(keys)
    added = torch.where(visible, 0.0 if factors is None else _logarithm(factors), -math.inf)
    if bias is not None:
        added = added + bias
    fully_masked = ~visible.any(-1, keepdim=True)
    hides = may_hold(fully_masked)
    added = (added.masked_fill(fully_masked, 0.0) if hides else added).to(scores.dtype)
    mass = torch.softmax(scores.unflatten(0, (-1, len(visible))) + added, -1)
    return (mass.masked_fill(fully_masked, 0.0) if hides else mass).flatten(0, 1)


def _one_row(keys: Keys) -> Keys:
    """The keys of one row if all rows are one expanded row, so that masks are made once, not B times."""
    parts = (keys.valid, keys.queries, keys.positions)
    if keys.counts is not None or keys.allowed is not None or any(part.stride(0) for part in parts):
        return keys
    return replace(keys, valid=keys.valid[:1], queries=keys.queries[:1], positions=keys.positions[:1])


def attend_by_distance(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    sockets: DistanceSockets,
    dropout: float,
    operators: Operators = PYTORCH,
) -> Tensor:
    """(B, H, Q, E): attention with a score term or a span, in bands where keys are out of reach.

    ``keys`` is not restricted yet.
    """
    keys, reach = _one_row(keys), sockets.reach
    if reach is not None and q.shape[2] > 1 and sockets.banded:
        left, right = reach
        block = next(size for most, size in _BLOCKS if left + right <= most)
        if left + block + right + _OVERHEAD < k.shape[2]:
            return _attend_in_bands(q, k, v, keys, sockets, dropout, BandLayout(1, left, right, block), operators.drop)
    return _attend(q, k, v, restrict(keys, sockets.pattern, sockets.causal), sockets, dropout, operators.drop)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    sockets: DistanceSockets,
    dropout: float,
    drop: Drop,
    first: int | None = None,
) -> Tensor:
    weights, _ = distance_weights(q, k, keys, sockets, first=first, exact=False)
    return drop_out(weights.to(v.dtype), dropout, drop) @ v


def _attend_in_bands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    sockets: DistanceSockets,
    dropout: float,
    layout: BandLayout,
    drop: Drop,
) -> Tensor:
    rows, _, queries, _ = q.shape
    band = restrict(band_keys(keys, layout), sockets.pattern, sockets.causal)
    parts = blocks(q, layout), overlapping(k, layout, queries), overlapping(v, layout, queries)
    return joined(_attend(*parts, band, sockets, dropout, drop, first=layout.left), rows, queries)
