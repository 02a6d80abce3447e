"""Dropout (Srivastava et al. 2014), faster than PyTorch's on a CPU.

PyTorch draws a Bernoulli variable for each element, which takes a fifth of a small model's training step. Here its
generator gives one key for a tensor, and a hash of key and place decides about two elements: a compiled operator
computes hash and product in one pass, and keeps nothing for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 1 << 16
"""Values of the 16 random bits that decide about an element."""

_CHUNK = 1 << 16  # words that stay in the cache

Drop = Callable[[Tensor, "Draws", int, Tensor | None], Tensor]
"""The operator `plain_drop`, or a faster one."""


@dataclass(frozen=True)
class Draws:
    """The random bits of a tensor's elements, for the forward and the backward pass.

    Args:
        key: 64 random bits, signed; it and the places of two neighbours decide about them.
        count: how many elements the tensor has.
    """

    key: int
    count: int

    @classmethod
    def of(cls, x: Tensor) -> Draws:
        """Draw a key for x from PyTorch's generator."""
        return cls(int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)), x.numel())

    @cached_property
    def bits(self) -> Tensor:
        """16 bits for each element, flat, int16: half of a word, the hash lowbias32 (Wellons 2018) with a key."""
        words = np.arange(-(-self.count // 2), dtype=np.uint32)
        for x in np.split(words, range(_CHUNK, len(words), _CHUNK)):  # views
            x *= 0x9E3779B1
            x ^= self.key & 0xFFFFFFFF
            x[:] = (x ^ x >> 16) * 0x7FEB352D + (self.key >> 32 & 0xFFFFFFFF)
            x[:] = (x ^ x >> 15) * 0x846CA68B
            x ^= x >> 16
        return torch.from_numpy(words.view(np.int16))[: self.count]


def plain_drop(x: Tensor, draws: Draws, dropped: int, added: Tensor | None = None) -> Tensor:
    """Dropout of x, scaled to keep the expectation, plus a tensor of its shape.

    Args:
        dropped: a number becomes zero with probability ``dropped`` / 65,536.
    """
    keep = torch.ge(draws.bits.view(x.shape), dropped - LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype))
    kept = (x * keep).mul_(LEVELS / (LEVELS - dropped))
    return kept if added is None else kept.add_(added)


class _Dropout(torch.autograd.Function):
    """x times a random mask, scaled to keep the expectation, plus a residual of its shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, dropped: int, drop: Drop) -> Tensor:
        """An element becomes zero with probability ``dropped`` / 65,536."""
        ctx.dropped, ctx.drop, ctx.draws = dropped, drop, Draws.of(x)
        return drop(x, ctx.draws, dropped, residual)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        of_x, of_residual = ctx.needs_input_grad[:2]
        dropped = ctx.drop(grads[0], ctx.draws, ctx.dropped, None) if of_x else None
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
