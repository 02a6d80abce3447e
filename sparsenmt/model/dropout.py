"""Dropout (Srivastava et al. 2014), faster than PyTorch's on a CPU.

PyTorch draws a Bernoulli variable for each element, which takes a fifth of a small model's training step. Here one draw
of 64 random bits decides for four elements, and an operator applies them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 1 << 16
"""Values of the 16 random bits that decide about an element."""

Drop = Callable[[Tensor, Tensor, int, Tensor | None], Tensor]
"""The operator `plain_drop`, or a faster one."""

_ELEMENTS = 4  # share a draw


def draw_bits(x: Tensor) -> Tensor:
    """16 random bits for each element of x, flat, int16: they depend only on PyTorch's seed."""
    draws = torch.empty(-(-x.numel() // _ELEMENTS), dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[: x.numel()]


def plain_drop(x: Tensor, draws: Tensor, dropped: int, added: Tensor | None = None) -> Tensor:
    """Dropout of x, scaled to keep the expectation, plus a tensor of its shape.

    Args:
        draws: 16 random bits for each number of x, flat, int16.
        dropped: a number becomes zero with probability ``dropped`` / 65,536.
    """
    keep = torch.ge(draws.view(x.shape), dropped - LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype))
    kept = (x * keep).mul_(LEVELS / (LEVELS - dropped))
    return kept if added is None else kept.add_(added)


class _Dropout(torch.autograd.Function):
    """x times a random mask, scaled to keep the expectation, plus a residual of its shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, dropped: int, drop: Drop) -> Tensor:
        """An element becomes zero with probability ``dropped`` / 65,536."""
        ctx.dropped, ctx.drop, draws = dropped, drop, draw_bits(x)
        ctx.save_for_backward(draws)
        return drop(x, draws, dropped, residual)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (draws,) = ctx.saved_tensors
        of_x, of_residual = ctx.needs_input_grad[:2]
        dropped = ctx.drop(grads[0], draws, ctx.dropped, None) if of_x else None
        return dropped, grads[0] if of_residual else None, None, None


def _draws_bits(x: Tensor) -> bool:
    """Return True on a CPU, but for code that PyTorch compiles: that draws its own random numbers."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def dropout(x: Tensor, probability: float, drop: Drop = plain_drop) -> Tensor:
    """Zero random elements of x and scale up the others; only for training.

    On a CPU the probability is rounded to a multiple of 1 / 65,536, with the scale of the rounded probability.
    """
    if not probability:
        return x
    dropped = round(probability * LEVELS)
    if not _draws_bits(x) or dropped >= LEVELS:
        return F.dropout(x, probability)
    result: Tensor = _Dropout.apply(x, None, dropped, drop)  # type: ignore[no-untyped-call]
    return result


def add_with_dropout(residual: Tensor, x: Tensor, probability: float, drop: Drop = plain_drop) -> Tensor:
    """``residual + dropout(x)``, of the same shape and dtype, in one pass on a CPU."""
    dropped = round(probability * LEVELS)
    fits = 0 < dropped < LEVELS and residual.dtype == x.dtype and residual.shape == x.shape
    if not (fits and _draws_bits(x)):
        return residual + dropout(x, probability, drop)
    result: Tensor = _Dropout.apply(x, residual, dropped, drop)  # type: ignore[no-untyped-call]
    return result
