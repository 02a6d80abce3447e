"""Dropout (Srivastava et al. 2014), faster than PyTorch's on a CPU.

PyTorch draws a Bernoulli variable for each element, which takes a fifth of a small model's training step. Here one draw
of 64 random bits decides for four elements.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 16  # values of the 16 random bits of an element
_ELEMENTS = 4  # share a draw


class _Dropout(torch.autograd.Function):
    """x times a random mask, scaled to keep the expectation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        """An element becomes zero with probability ``dropped`` / 65,536."""
        keep = _keep_mask(x, dropped)
        ctx.save_for_backward(keep)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (keep,) = ctx.saved_tensors
        return (grads[0] * keep).mul_(ctx.scale), None


def _keep_mask(x: Tensor, dropped: int) -> Tensor:
    """1 or 0, in the dtype of x, as products of two dtypes are slow. It depends only on PyTorch's seed."""
    draws = torch.empty(-(-x.numel() // _ELEMENTS), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    return torch.ge(bits, dropped - _LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype))


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero random elements of x and scale up the others; only for training.

    On a CPU the probability is rounded to a multiple of 1 / 65,536, with the scale of the rounded probability.
    """
    if not probability:
        return x
    dropped = round(probability * _LEVELS)
    if x.device.type != "cpu" or dropped >= _LEVELS:
        return F.dropout(x, probability)
    result: Tensor = _Dropout.apply(x, dropped)  # type: ignore[no-untyped-call]
    return result
