"""Fixed heads as linear maps over positions, and their transposes for the gradient, all in O(length).

Shapes: B rows, G fixed heads, K positions (keys, and as many queries), E head size, W words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 64  # rows of a running sum that one product computes


class HeadMap(Protocol):
    """A fixed head as a linear map over positions, and its transpose for the gradient."""

    def apply(self, x: Tensor, out: Tensor) -> None:
        """x (B, K, E) -> out (B, K, E), which is overwritten."""
        ...

    def transposed(self, x: Tensor, out: Tensor) -> None:
        """The transpose; arguments as for `apply`."""
        ...


@dataclass(frozen=True)
class ShiftMap:
    """Row i reads key i - by."""

    by: int
    seen: Tensor  # (B, K) 1 at visible keys

    def apply(self, x: Tensor, out: Tensor) -> None:
        rows, keys = self._slices(x.shape[1])
        _fill_outside(out, rows)
        torch.mul(x[:, keys], self.seen[:, keys, None].to(x.dtype), out=out[:, rows])

    def transposed(self, x: Tensor, out: Tensor) -> None:
        rows, keys = self._slices(x.shape[1])
        _fill_outside(out, keys)
        torch.mul(x[:, rows], self.seen[:, keys, None].to(x.dtype), out=out[:, keys])

    def _slices(self, length: int) -> tuple[slice, slice]:
        """The rows that have a target, and their keys."""
        right, left = max(self.by, 0), max(-self.by, 0)
        return slice(min(right, length), length - left), slice(min(left, length), length - right)


def _fill_outside(out: Tensor, kept: slice) -> None:
    """Set the positions that are not in ``kept`` to zero."""
    out[:, : kept.start].zero_()
    out[:, max(kept.stop, kept.start) :].zero_()


@dataclass(frozen=True)
class RunningSumMap:
    """``out_i = outer_i * sum_j inner_j x_j`` over j <= i - 2 (leftward), or over j >= i + 2."""

    inner: Tensor  # (B, K)
    outer: Tensor  # (B, K)
    leftward: bool

    def apply(self, x: Tensor, out: Tensor) -> None:
        _running_sum(x, self.inner, self.outer, out, leftward=self.leftward)

    def transposed(self, x: Tensor, out: Tensor) -> None:
        _running_sum(x, self.outer, self.inner, out, leftward=not self.leftward)


def _running_sum(x: Tensor, inner: Tensor, outer: Tensor, out: Tensor, *, leftward: bool) -> None:
    """Compute `RunningSumMap` by blocks: a product of rows and keys, plus one vector for all earlier blocks.

    Nothing is subtracted, so that small sums at the beginning keep their precision.
    """
    length = x.shape[1] - 2
    if length <= 0:
        out.zero_()
        return
    # With rows and keys shifted by two, row r reads the keys up to r (leftward), or from r on.
    rows, keys = (slice(2, None), slice(None, length)) if leftward else (slice(None, length), slice(2, None))
    _fill_outside(out, slice(2, length + 2) if leftward else slice(0, length))
    x, inner, outer, out = x[:, keys].to(inner.dtype), inner[:, keys], outer[:, rows], out[:, rows]
    before: Tensor | None = None  # (B, 1, E)
    starts = range(0, length, _BLOCK)
    for start in starts if leftward else reversed(starts):
        part = slice(start, start + _BLOCK)
        weights = outer[:, part, None] * inner[:, None, part]
        block = torch.bmm(weights.tril_() if leftward else weights.triu_(), x[:, part])
        if before is not None:
            block.addcmul_(outer[:, part, None], before)
        out[:, part] = block
        if length > _BLOCK:
            total = torch.bmm(inner[:, None, part], x[:, part])
            before = total if before is None else before + total


@dataclass(frozen=True)
class SentenceMeanMap:
    """All rows read the same weighted mean of the sentence."""

    weights: Tensor  # (B, K)

    def apply(self, x: Tensor, out: Tensor) -> None:
        out.copy_(torch.bmm(self.weights[:, None], x.to(self.weights.dtype)))

    def transposed(self, x: Tensor, out: Tensor) -> None:
        torch.mul(self.weights[:, :, None], x.sum(1, keepdim=True, dtype=self.weights.dtype), out=out)


@dataclass(frozen=True)
class OrSelfMap:
    """Another map, in which rows without a target read themselves."""

    head: HeadMap
    own: Tensor  # (B, K) 1 at those rows

    def apply(self, x: Tensor, out: Tensor) -> None:
        self.head.apply(x, out)
        out.addcmul_(x, self.own[:, :, None].to(x.dtype))

    def transposed(self, x: Tensor, out: Tensor) -> None:
        self.head.transposed(x, out)
        out.addcmul_(x, self.own[:, :, None].to(x.dtype))


@dataclass(frozen=True)
class TokenHeadsMap:
    """The fixed heads of a batch, as a linear map from values to contexts."""

    heads: tuple[HeadMap, ...]

    def apply(self, x: Tensor) -> Tensor:
        """x (B, K, G, E) -> (B, K, G, E)."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for i, head in enumerate(self.heads):
            head.apply(x[:, :, i], out[:, :, i])
        return out

    def transposed(self, x: Tensor) -> Tensor:
        """x (B, K, G, E) -> (B, K, G, E)."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for i, head in enumerate(self.heads):
            head.transposed(x[:, :, i], out[:, :, i])
        return out


@dataclass(frozen=True)
class WordHeadsMap:
    """Fixed heads over words: tokens are summed to words, and every token gets the context of its word."""

    words: TokenHeadsMap
    index: Tensor  # (B * K) the word of each token, numbered through all rows
    share: Tensor  # (B, K) each token's share of its word's weight
    count: int  # W words in a row

    def apply(self, x: Tensor) -> Tensor:
        """x (B, K, G, E) -> (B, K, G, E)."""
        x = x.to(self.share.dtype) * self.share[:, :, None, None]
        return self._to_tokens(self.words.apply(self._to_words(x)))

    def transposed(self, x: Tensor) -> Tensor:
        """x (B, K, G, E) -> (B, K, G, E)."""
        x = self._to_words(x.to(self.share.dtype))
        return self._to_tokens(self.words.transposed(x)) * self.share[:, :, None, None]

    def _to_words(self, x: Tensor) -> Tensor:
        """(B, K, G, E) -> sums (B, W, G, E)."""
        rows, _, heads, size = x.shape
        sums = x.new_zeros(rows * self.count, heads * size).index_add_(0, self.index, x.reshape(-1, heads * size))
        return sums.view(rows, self.count, heads, size)

    def _to_tokens(self, x: Tensor) -> Tensor:
        """(B, W, G, E) -> (B, K, G, E)."""
        return x.flatten(0, 1).index_select(0, self.index).view(*self.share.shape, *x.shape[2:])


class ApplyMap(torch.autograd.Function):
    """Apply a map to values (B, K, G, E). The gradient is by the transpose, so no activation is saved."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, linear_map: TokenHeadsMap | WordHeadsMap) -> Tensor:
        ctx.map = linear_map
        return linear_map.apply(values).to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.map.transposed(gradient).to(gradient.dtype), None
