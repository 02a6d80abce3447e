"""Cross-entropy with label smoothing, computed so that the logits of a batch never exist whole.

Label smoothing puts (1 - eps) of the mass on the target and spreads eps over the vocabulary (Szegedy et al. 2016).
Shapes: N rows (real target positions, of one exit or of several), n rows of a chunk, D model dimension, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.protocol import TranslationModel

CHUNK_ROWS = 512
"""Rows projected at a time: enough for the matrix product, little beside the rest of the activations."""


@dataclass(frozen=True)
class RowLosses:
    """Of every row: the loss, and the plain negative log-likelihood in nats. (N), fp32 or wider."""

    loss: Tensor
    nll: Tensor


@torch.no_grad()
def backward_through_projection(
    model: TranslationModel, hidden: Tensor, target: Tensor, weights: Tensor, smoothing: float
) -> tuple[Tensor, RowLosses]:
    """Losses of rows, and the gradient of their weighted sum; the gradient of the projection's table is accumulated.

    hidden (N, D), target (N), weights (N) of each row's loss -> gradient (N, D).

    Written out, as the logits are what training reads and writes most. Of a row h with weight w, p = softmax(W h):
    dL/dh = w (W^T (p - (1 - eps) e_target) - eps W^T 1 / V), dL/dW = (p - (1 - eps) e_target - eps 1 / V) w h^T.
    Only p is as large as the logits; weights and the uniform part meet vectors of D.
    """
    table, wide = model.output_table, torch.promote_types(hidden.dtype, torch.float32)
    uniform = smoothing / table.shape[0]
    columns = table.sum(0, dtype=wide)  # (D) W^T 1
    if table.grad is None:
        table.grad = torch.zeros_like(table)
    room = hidden.new_empty(min(CHUNK_ROWS, len(hidden)), table.shape[0])
    gradients, losses, nlls = [], [], []
    total = torch.zeros_like(columns)  # (D) sum of w h
    pieces = zip(hidden.split(CHUNK_ROWS), target.split(CHUNK_ROWS), weights.split(CHUNK_ROWS), strict=True)
    for rows, wanted, weight in pieces:
        logits = torch.mm(rows, table.t(), out=room[: len(rows)])  # (n, V)
        top, own = logits.amax(-1).to(wide), logits.gather(1, wanted[:, None]).squeeze(1).to(wide)
        p = _probabilities(logits, wide)
        # The normaliser from the likeliest piece, whose probability loses nothing: no second pass of exponentials.
        log_sum = top - p.amax(-1).log()
        nll = log_sum - own
        mean = rows.to(wide) @ columns / table.shape[0]  # (n) of the logits
        losses.append((1 - smoothing) * nll + smoothing * (log_sum - mean))
        nlls.append(nll)
        p.scatter_add_(1, wanted[:, None], torch.full_like(nll, smoothing - 1)[:, None])
        p = p.to(rows.dtype)
        weighted = rows.to(wide) * weight[:, None]  # (n, D)
        total += weighted.sum(0)
        table.grad.addmm_(p.t(), weighted.to(rows.dtype))
        gradient = (torch.mm(p, table).to(wide) - uniform * columns) * weight[:, None]
        gradients.append(gradient.to(rows.dtype))
    if smoothing:
        table.grad -= (uniform * total).to(table.dtype)
    return torch.cat(gradients), RowLosses(torch.cat(losses), torch.cat(nlls))


def _probabilities(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """(n, V) in ``dtype``; in the place of the logits, where that is theirs."""
    if logits.dtype == dtype:
        return torch.softmax(logits, -1, out=logits)
    return torch.softmax(logits, -1, dtype=dtype)


@torch.no_grad()
def negative_log_likelihood(model: TranslationModel, hidden: Tensor, target: Tensor) -> Tensor:
    """hidden (N, D), target (N) -> (N) in nats, chunk by chunk."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    pieces = zip(hidden.split(CHUNK_ROWS), target.split(CHUNK_ROWS), strict=True)
    return torch.cat(
        [F.cross_entropy(model.project(rows).to(wide), wanted, reduction="none") for rows, wanted in pieces]
    )
