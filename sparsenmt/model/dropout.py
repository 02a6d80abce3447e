"""Dropout (Srivastava et al. 2014), faster than PyTorch's on a CPU.

PyTorch draws a Bernoulli variable for each element, which takes a fifth of a small model's training step. Here one draw
of 64 random bits decides for four elements, and a compiled kernel applies them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.gradients import drop
from sparsenmt.native.training_operators import LEVELS

_ELEMENTS = 4  # share a draw


def draw_bits(x: Tensor) -> Tensor:
    """16 random bits for each element of x, flat, int16: they depend only on PyTorch's seed."""
    draws = torch.empty(-(-x.numel() // _ELEMENTS), dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[: x.numel()]


class _Dropout(torch.autograd.Function):
    """x times a random mask, scaled to keep the expectation, plus a residual of its shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, dropped: int) -> Tensor:
        """An element becomes zero with probability ``dropped`` / 65,536."""
        ctx.dropped, draws = dropped, draw_bits(x)
        ctx.save_for_backward(draws)
        return drop(x, draws, dropped, residual)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (draws,) = ctx.saved_tensors
        of_x, of_residual = ctx.needs_input_grad[:2]
        return drop(grads[0], draws, ctx.dropped) if of_x else None, grads[0] if of_residual else None, None


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero random elements of x and scale up the others; only for training.

    On a CPU the probability is rounded to a multiple of 1 / 65,536, with the scale of the rounded probability.
    """
    if not probability:
        return x
    dropped = round(probability * LEVELS)
    if x.device.type != "cpu" or dropped >= LEVELS:
        return F.dropout(x, probability)
    result: Tensor = _Dropout.apply(x, None, dropped)  # type: ignore[no-untyped-call]
    return result


def add_with_dropout(residual: Tensor, x: Tensor, probability: float) -> Tensor:
    """``residual + dropout(x)``, of the same shape and dtype, in one pass on a CPU."""
    dropped = round(probability * LEVELS)
    fits = x.device.type == "cpu" and 0 < dropped < LEVELS and residual.dtype == x.dtype and residual.shape == x.shape
    if not fits:
        return residual + dropout(x, probability)
    result: Tensor = _Dropout.apply(x, residual, dropped)  # type: ignore[no-untyped-call]
    return result
