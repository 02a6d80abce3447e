"""Given heads as linear maps over positions, and their transposes for the gradient, all in O(length).

Shapes: B rows, G given heads, K positions (keys, and as many queries), E head size, W words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 64  # rows of a running sum that one product computes


class Head(Protocol):
    """A given head as a linear map over positions, and its transpose for the gradient."""

    def apply(self, x: Tensor, out: Tensor) -> None:
        """x (B, K, E) -> out (B, K, E), which is overwritten."""
        ...

    def transposed(self, x: Tensor, out: Tensor) -> None:
        """As `apply`."""
        ...


@dataclass(frozen=True)
class Shift:
    """Row i reads key i - by."""

    by: int
    seen: Tensor  # (B, K) 1 at keys that are seen

    def apply(self, x: Tensor, out: Tensor) -> None:
        rows, keys = self._slices(x.shape[1])
        _fill_outside(out, rows)
        torch.mul(x[:, keys], self.seen[:, keys, None].to(x.dtype), out=out[:, rows])

    def transposed(self, x: Tensor, out: Tensor) -> None:
        rows, keys = self._slices(x.shape[1])
        _fill_outside(out, keys)
        torch.mul(x[:, rows], self.seen[:, keys, None].to(x.dtype), out=out[:, keys])

    def _slices(self, length: int) -> tuple[slice, slice]:
        """Rows that read something, and the keys that they read."""
        right, left = max(self.by, 0), max(-self.by, 0)
        return slice(min(right, length), length - left), slice(min(left, length), length - right)


def _fill_outside(out: Tensor, kept: slice) -> None:
    """Zeros at the positions that are not in ``kept``."""
    out[:, : kept.start].zero_()
    out[:, max(kept.stop, kept.start) :].zero_()


@dataclass(frozen=True)
class Running:
    """``out_i = outer_i * sum_j inner_j x_j`` over j <= i - 2 (leftward), or over j >= i + 2."""

    inner: Tensor  # (B, K)
    outer: Tensor  # (B, K)
    leftward: bool

    def apply(self, x: Tensor, out: Tensor) -> None:
        _running_sum(x, self.inner, self.outer, out, leftward=self.leftward)

    def transposed(self, x: Tensor, out: Tensor) -> None:
        _running_sum(x, self.outer, self.inner, out, leftward=not self.leftward)


def _running_sum(x: Tensor, inner: Tensor, outer: Tensor, out: Tensor, *, leftward: bool) -> None:
    """As `Running` says. A block of rows reads a block of keys in one product, and what lay before it as one vector.

    Sums grow from their beginning and nothing is subtracted: early rows do not drown in what follows.
    """
    length = x.shape[1] - 2
    if length <= 0:
        out.zero_()
        return
    # Row r reads the keys up to r (leftward), or from r on, once rows and keys are moved by two against each other.
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
class Whole:
    """Every row reads the same mean of the sentence."""

    weights: Tensor  # (B, K)

    def apply(self, x: Tensor, out: Tensor) -> None:
        out.copy_(torch.bmm(self.weights[:, None], x.to(self.weights.dtype)))

    def transposed(self, x: Tensor, out: Tensor) -> None:
        torch.mul(self.weights[:, :, None], x.sum(1, keepdim=True, dtype=self.weights.dtype), out=out)


@dataclass(frozen=True)
class OrSelf:
    """As another head; rows without a target read themselves."""

    head: Head
    own: Tensor  # (B, K) 1 at those rows

    def apply(self, x: Tensor, out: Tensor) -> None:
        self.head.apply(x, out)
        out.addcmul_(x, self.own[:, :, None].to(x.dtype))

    def transposed(self, x: Tensor, out: Tensor) -> None:
        self.head.transposed(x, out)
        out.addcmul_(x, self.own[:, :, None].to(x.dtype))


@dataclass(frozen=True)
class FixedMap:
    """The given heads of a batch, as a linear map from values to contexts."""

    heads: tuple[Head, ...]

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
class WordPlan:
    """As `FixedMap`, of heads that look at words: pieces are added up to words, and every piece gets what its word gets."""

    words: FixedMap
    index: Tensor  # (B * K) the word of each piece, numbered through all rows
    share: Tensor  # (B, K) the part of its word's weight that each piece has
    count: int  # W words in a row

    def apply(self, x: Tensor) -> Tensor:
        """x (B, K, G, E) -> (B, K, G, E)."""
        x = x.to(self.share.dtype) * self.share[:, :, None, None]
        return self._to_pieces(self.words.apply(self._to_words(x)))

    def transposed(self, x: Tensor) -> Tensor:
        """x (B, K, G, E) -> (B, K, G, E)."""
        x = self._to_words(x.to(self.share.dtype))
        return self._to_pieces(self.words.transposed(x)) * self.share[:, :, None, None]

    def _to_words(self, x: Tensor) -> Tensor:
        """(B, K, G, E) -> sums (B, W, G, E)."""
        rows, _, heads, size = x.shape
        sums = x.new_zeros(rows * self.count, heads * size).index_add_(0, self.index, x.reshape(-1, heads * size))
        return sums.view(rows, self.count, heads, size)

    def _to_pieces(self, x: Tensor) -> Tensor:
        """(B, W, G, E) -> (B, K, G, E)."""
        return x.flatten(0, 1).index_select(0, self.index).view(*self.share.shape, *x.shape[2:])


class Contexts(torch.autograd.Function):
    """What a plan makes of values (B, K, G, E). The gradient is the transpose: nothing of the forward pass is kept."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, plan: FixedMap | WordPlan) -> Tensor:
        ctx.plan = plan
        return plan.apply(values).to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.plan.transposed(gradient).to(gradient.dtype), None
