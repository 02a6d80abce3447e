"""Dropout (Srivastava et al. 2014) that does not dominate training on a CPU.

PyTorch draws a Bernoulli variable for each element there, one after the other: a fifth of the time of a small model's
training step. Here one draw of 64 random bits decides for four elements.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 16  # of the 16 random bits of an element
_ELEMENTS = 4  # that share a draw


class _Dropout(torch.autograd.Function):
    """x times a random mask, scaled so that the expectation stays."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        """``dropped`` of 65,536 elements become zero."""
        keep = _keep_mask(x, dropped)
        ctx.save_for_backward(keep)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (keep,) = ctx.saved_tensors
        return (grads[0] * keep).mul_(ctx.scale), None


def _keep_mask(x: Tensor, dropped: int) -> Tensor:
    """1 or 0, of the shape and dtype of x, as products of two dtypes are slow. It depends on PyTorch's seed alone."""
    draws = torch.empty(-(-x.numel() // _ELEMENTS), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    return torch.ge(bits, dropped - _LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype))


def dropout(x: Tensor, probability: float) -> Tensor:
    """x with elements zeroed by chance and the others scaled up; only for training.

    On a CPU the probability is rounded to a multiple of 1 / 65,536, and the scale fits what is rounded.
    """
    if not probability:
        return x
    dropped = round(probability * _LEVELS)
    if x.device.type != "cpu" or dropped >= _LEVELS:
        return F.dropout(x, probability)
    result: Tensor = _Dropout.apply(x, dropped)  # type: ignore[no-untyped-call]
    return result
