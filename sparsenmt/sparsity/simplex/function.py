"""alpha-entmax attention mass as a differentiable function of scores and alpha, with masks and counts.

Shapes: B rows, H heads, Q queries, K keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsenmt.sparsity.simplex import newton
from sparsenmt.sparsity.simplex.native import native


def entmax(
    scores: Tensor, alpha: float | Tensor, visible: Tensor | None = None, counts: Tensor | None = None
) -> Tensor:
    """The argmax over p on the simplex of p . scores + Tsallis alpha-entropy of p (Peters, Niculae and Martins 2019).

    alpha = 1 is softmax, 2 sparsemax. A key that stands for c equal keys gets the mass c p, and sum c p = 1.

    Args:
        scores: (B, H, Q, K), in fp32 or float64.
        alpha: from 1 to 2; a tensor (H) has one for each head, and gets a gradient.
        visible: bool, broadcastable to (B, H, Q, K): other keys get exactly 0 and no gradient.
        counts: (B, K).

    Returns:
        mass (B, H, Q, K); fully masked rows are zero. There is no second derivative.
    """
    mass: Tensor = _EntmaxFunction.apply(scores, alpha, visible, counts)  # type: ignore[no-untyped-call]
    return mass


class _EntmaxFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, alpha: float | Tensor, visible: Tensor | None, counts: Tensor | None
    ) -> Tensor:
        heads = alpha.detach().to(scores.dtype) if isinstance(alpha, Tensor) else None
        ctx.fixed = None if isinstance(alpha, Tensor) else alpha
        counts = None if counts is None else counts.to(scores.dtype).contiguous()
        compiled = native(scores)
        if compiled is not None and compiled.faster("forward", scores.shape[-1], ctx.fixed):
            mass = compiled.forward(scores, visible, counts, _each_head(heads, ctx.fixed, scores))
        else:
            hidden = scores if visible is None else scores.masked_fill(~visible, -torch.inf)
            rows = newton.weights(hidden.flatten(0, 2), _each_row(heads, ctx.fixed, scores), _spread(counts, scores))
            mass = rows.view_as(scores)
        ctx.save_for_backward(mass, heads, counts)
        return mass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        mass, heads, counts = ctx.saved_tensors
        of_alpha = bool(ctx.needs_input_grad[1])
        compiled = native(mass)
        if compiled is not None and compiled.faster("backward", mass.shape[-1], ctx.fixed):
            each = _each_head(heads, ctx.fixed, mass)
            gradient, sums = compiled.backward(mass, given, counts, each, of_alpha=of_alpha)
        else:
            gradient, sums = newton.gradients(
                mass.flatten(0, 2),
                given.flatten(0, 2),
                _each_row(heads, ctx.fixed, mass),
                _spread(counts, mass),
                of_alpha=of_alpha,
            )
        total = None if sums is None else sums.view(mass.shape[:3]).sum((0, 2))
        return gradient.view_as(mass), total, None, None


def _each_head(heads: Tensor | None, fixed: float | None, like: Tensor) -> Tensor:
    """(H)"""
    return like.new_full((like.shape[1],), fixed or 0.0) if heads is None else heads.contiguous()


def _each_row(heads: Tensor | None, fixed: float | None, like: Tensor) -> newton.Alpha:
    """One number, or (B * H * Q, 1)."""
    if heads is None:
        assert fixed is not None
        return fixed
    return heads[None, :, None].expand(like.shape[:3]).reshape(-1, 1)


def _spread(counts: Tensor | None, like: Tensor) -> Tensor | None:
    """(B, K) -> (B * H * Q, K)."""
    return None if counts is None else counts[:, None, None].expand(like.shape).flatten(0, 2)
