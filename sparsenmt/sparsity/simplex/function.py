"""alpha-entmax attention mass as a differentiable function of scores and alpha, with masks and counts.

Shapes: B rows, H heads, Q queries, K keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsenmt.sparsity.simplex import newton


class Solver:
    """The passes of `entmax`: here in PyTorch, on any device; those who train or decode may have a faster one."""

    def weights(self, scores: Tensor, alpha: float | Tensor, visible: Tensor | None, counts: Tensor | None) -> Tensor:
        """Compute the mass (B, H, Q, K); see `entmax`."""
        hidden = scores if visible is None else scores.masked_fill(~visible, -torch.inf)
        rows = newton.weights(hidden.flatten(0, 2), _each_row(alpha, scores), _spread(counts, scores))
        return rows.view_as(scores)

    def gradients(
        self, mass: Tensor, given: Tensor, alpha: float | Tensor, counts: Tensor | None, *, of_alpha: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the gradients of scores and, if wanted, of each row's alpha (B * H * Q), from that of the mass."""
        return newton.gradients(
            mass.flatten(0, 2), given.flatten(0, 2), _each_row(alpha, mass), _spread(counts, mass), of_alpha=of_alpha
        )


NEWTON = Solver()


def entmax(
    scores: Tensor,
    alpha: float | Tensor,
    visible: Tensor | None = None,
    counts: Tensor | None = None,
    solver: Solver = NEWTON,
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
    mass: Tensor = _EntmaxFunction.apply(scores, alpha, visible, counts, solver)  # type: ignore[no-untyped-call]
    return mass


class _EntmaxFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        alpha: float | Tensor,
        visible: Tensor | None,
        counts: Tensor | None,
        solver: Solver,
    ) -> Tensor:
        heads = alpha.detach().to(scores.dtype) if isinstance(alpha, Tensor) else None
        ctx.fixed, ctx.solver = alpha if heads is None else None, solver
        counts = None if counts is None else counts.to(scores.dtype).contiguous()
        mass = solver.weights(scores, alpha if heads is None else heads, visible, counts)
        ctx.save_for_backward(mass, heads, counts)
        return mass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        mass, heads, counts = ctx.saved_tensors
        alpha, of_alpha = ctx.fixed if heads is None else heads, bool(ctx.needs_input_grad[1])
        gradient, sums = ctx.solver.gradients(mass, given, alpha, counts, of_alpha=of_alpha)
        total = None if sums is None else sums.view(mass.shape[:3]).sum((0, 2))
        return gradient.view_as(mass), total, None, None, None


def _each_row(alpha: float | Tensor, like: Tensor) -> newton.Alpha:
    """One number, or (B * H * Q, 1)."""
    return alpha[None, :, None].expand(like.shape[:3]).reshape(-1, 1) if isinstance(alpha, Tensor) else alpha


def _spread(counts: Tensor | None, like: Tensor) -> Tensor | None:
    """(B, K) -> (B * H * Q, K)."""
    return None if counts is None else counts[:, None, None].expand(like.shape).flatten(0, 2)
