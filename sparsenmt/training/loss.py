"""Cross-entropy with label smoothing, computed so that the logits of a batch never exist whole.

Shapes: B sentences, T target positions, N real target tokens, D model dimension, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsenmt.model.interfaces import TranslationModel

CHUNK_ROWS = 512
"""Rows projected at a time: enough for the matrix product, little beside the rest of the activations."""


class SmoothedCrossEntropy(torch.autograd.Function):
    """Cross-entropy with (1 - eps) of the mass on the target and eps spread over the vocabulary (Szegedy et al. 2016).

    The gradient, softmax - smoothed target, is made in the forward pass in place of the probabilities.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """logits (N, V), target (N) -> loss (N), negative log-likelihood (N), in fp32 or wider."""
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        gradient = torch.softmax(logits, -1, dtype=wide)
        # The normaliser from the likeliest piece, whose probability loses nothing: one pass of exponentials is enough.
        log_sum = logits.amax(-1).to(wide) - gradient.amax(-1).log()
        nll = log_sum - logits.gather(1, target[:, None]).squeeze(1).to(wide)
        uniform = log_sum - logits.mean(-1, dtype=wide)
        if smoothing:
            gradient -= smoothing / logits.shape[1]
        rest = torch.full_like(nll, smoothing - 1.0)
        gradient.scatter_add_(1, target[:, None], rest[:, None])
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(nll)
        return (1.0 - smoothing) * nll + smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return (gradient * grads[0][:, None]).to(ctx.dtype), None, None


@dataclass(frozen=True)
class LossSums:
    """Sums over real target tokens: weighted loss, and plain negative log-likelihood in nats."""

    loss: float
    nll: float


def backward_through_projection(
    model: TranslationModel, hidden: Tensor, target: Tensor, weights: Tensor, smoothing: float
) -> tuple[Tensor, LossSums]:
    """Loss of one exit and its gradient with respect to ``hidden``; gradients of the projection are accumulated.

    hidden (N, D), target (N), weights (N) of each token's loss -> gradient (N, D).
    """
    gradients, loss_sum, nll_sum = [], 0.0, 0.0
    pieces = zip(hidden.detach().split(CHUNK_ROWS), target.split(CHUNK_ROWS), weights.split(CHUNK_ROWS), strict=True)
    for rows, wanted, weight in pieces:
        leaf = rows.requires_grad_()
        loss, nll = SmoothedCrossEntropy.apply(model.project(leaf), wanted, smoothing)  # type: ignore[no-untyped-call]
        total = (loss * weight).sum()
        total.backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
        loss_sum += float(total.detach())
        nll_sum += float(nll.sum())
    return torch.cat(gradients), LossSums(loss_sum, nll_sum)


@torch.no_grad()
def negative_log_likelihood(model: TranslationModel, hidden: Tensor, target: Tensor) -> Tensor:
    """hidden (N, D), target (N) -> (N) in nats, chunk by chunk."""
    pieces = zip(hidden.split(CHUNK_ROWS), target.split(CHUNK_ROWS), strict=True)
    return torch.cat(
        [SmoothedCrossEntropy.apply(model.project(rows), wanted, 0.0)[1] for rows, wanted in pieces]  # type: ignore[no-untyped-call]
    )
