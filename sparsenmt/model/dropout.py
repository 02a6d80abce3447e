"""Dropout (Srivastava et al. 2014), faster than PyTorch's on a CPU.

PyTorch draws a Bernoulli variable for each element, which takes a fifth of a small model's training step. Here its
generator gives one key for a tensor, and a hash of key and place decides about each element: nothing is kept for the
backward pass, and an operator computes hash and product in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 1 << 16
"""Values of the 16 random bits that decide about an element."""

Drop = Callable[[Tensor, int, int, Tensor | None], Tensor]
"""The operator `plain_drop`, or a faster one."""


def draw_key() -> int:
    """A key of 64 random bits, signed, from PyTorch's generator."""
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))


def draw_bits(key: int, count: int) -> Tensor:
    """16 random bits for each of ``count`` places, int32: the upper ones of the hash lowbias32 (Wellons 2018)."""
    x = torch.arange(count, dtype=torch.int32).mul_(_signed(0x9E3779B1)).bitwise_xor_(_signed(key))
    x.bitwise_xor_(_upper(x, 16)).mul_(0x7FEB352D).add_(_signed(key >> 32))
    return _upper(x.bitwise_xor_(_upper(x, 15)).mul_(_signed(0x846CA68B)), 16)


def _signed(word: int) -> int:
    """The lower 32 bits as a signed number."""
    return (word + (1 << 31)) % (1 << 32) - (1 << 31)


def _upper(x: Tensor, bits: int) -> Tensor:
    """Shift int32 numbers right by these bits, with zeros from the left."""
    return (x >> bits).bitwise_and_((1 << 32 - bits) - 1)


def plain_drop(x: Tensor, key: int, dropped: int, added: Tensor | None = None) -> Tensor:
    """Dropout of x, scaled to keep the expectation, plus a tensor of its shape.

    Args:
        key: from `draw_key`; it and the place of a number in x decide about it.
        dropped: a number becomes zero with probability ``dropped`` / 65,536.
    """
    bits = draw_bits(key, x.numel()).view(x.shape)
    kept = (x * torch.ge(bits, dropped, out=torch.empty(x.shape, dtype=x.dtype))).mul_(LEVELS / (LEVELS - dropped))
    return kept if added is None else kept.add_(added)


class _Dropout(torch.autograd.Function):
    """x times a random mask, scaled to keep the expectation, plus a residual of its shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, dropped: int, drop: Drop) -> Tensor:
        """An element becomes zero with probability ``dropped`` / 65,536."""
        ctx.dropped, ctx.drop, ctx.key = dropped, drop, draw_key()
        return drop(x, ctx.key, dropped, residual)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        of_x, of_residual = ctx.needs_input_grad[:2]
        dropped = ctx.drop(grads[0], ctx.key, ctx.dropped, None) if of_x else None
        return dropped, grads[0] if of_residual else None, None, None


def _draws_keys(x: Tensor) -> bool:
    """Return True on a CPU, but for code that PyTorch compiles: that draws its own random numbers."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def dropout(x: Tensor, probability: float, drop: Drop = plain_drop) -> Tensor:
    """Zero random elements of x and scale up the others; only for training.

    On a CPU the probability is rounded to a multiple of 1 / 65,536, with the scale of the rounded probability.
    """
    if not probability:
        return x
    dropped = round(probability * LEVELS)
    if not _draws_keys(x) or dropped >= LEVELS:
        return F.dropout(x, probability)
    result: Tensor = _Dropout.apply(x, None, dropped, drop)  # type: ignore[no-untyped-call]
    return result


def add_with_dropout(residual: Tensor, x: Tensor, probability: float, drop: Drop = plain_drop) -> Tensor:
    """``residual + dropout(x)``, of the same shape and dtype, in one pass on a CPU."""
    dropped = round(probability * LEVELS)
    fits = 0 < dropped < LEVELS and residual.dtype == x.dtype and residual.shape == x.shape
    if not (fits and _draws_keys(x)):
        return residual + dropout(x, probability, drop)
    result: Tensor = _Dropout.apply(x, residual, dropped, drop)  # type: ignore[no-untyped-call]
    return result
