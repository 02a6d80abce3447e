"""Cross-entropy with label smoothing, computed in chunks: the logits of a whole batch never exist.

Label smoothing puts (1 - eps) of the mass on the target and spreads eps over the vocabulary (Szegedy et al. 2016).
Shapes: N rows (target positions without padding, of one exit or several), n rows of a chunk, D model dimension, V
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.protocol import NEVER, TranslationModel

CHUNK_ROWS = 512
"""Rows of a chunk on a CPU: enough for an efficient matrix product, small compared with the other activations."""

_DEVICE_ROWS = 2048  # of a chunk without gradients
_DEVICE_LOGITS = 1 << 27  # of a chunk, 0.5 GB in fp32: a device computes few rows sooner than they are handed to it


@dataclass(frozen=True)
class RowLosses:
    """The loss and the negative log-likelihood in nats of every row: (N), fp32 or wider."""

    loss: Tensor
    nll: Tensor


def chunk_rows(table: Tensor) -> int:
    """Return the number of rows whose products with an output table (V, D) exist at a time."""
    return CHUNK_ROWS if table.device.type == "cpu" else max(CHUNK_ROWS, _DEVICE_LOGITS // table.shape[0])


@torch.no_grad()
def backward_through_projection(
    model: TranslationModel, hidden: Tensor, target: Tensor, weights: Tensor, smoothing: float
) -> tuple[Tensor, RowLosses]:
    """Compute the losses of rows and the gradient of their weighted sum; add the gradient of the output table to it.

    hidden (N, D), target (N), weights (N) of each row's loss -> gradient (N, D).

    The gradient is written out because the logits dominate the memory traffic of training. For a row h with weight w
    and p = softmax(W h):
    dL/dh = w (W^T (p - (1 - eps) e_target) - eps W^T 1 / V), dL/dW = (p - (1 - eps) e_target - eps 1 / V) w h^T.
    Only p has the size of the logits; weights and the uniform part are applied to vectors of size D. An output bias b
    has the gradient of W without h^T; tokens that it excludes have no part in V and 1.
    """
    table, wide = model.output_table, torch.promote_types(hidden.dtype, torch.float32)
    bias, never = model.output_bias, torch.empty(0, dtype=torch.long, device=table.device)
    if bias is not None:
        never = (bias <= NEVER / 2).nonzero().flatten()  # tokens that it excludes
    size = table.shape[0] - len(never)
    uniform = smoothing / size
    columns = table.sum(0, dtype=wide)  # (D) W^T 1
    if table.grad is None and table.requires_grad:
        table.grad = torch.zeros_like(table)
    mean_bias, of_bias = 0.0, None
    if bias is not None:
        of_bias = torch.zeros_like(bias, dtype=wide) if bias.requires_grad else None  # its sum over all rows
        columns -= table[never].sum(0, dtype=wide)
        mean_bias = float(bias.index_fill(0, never, 0.0).sum(dtype=wide)) / size
    most = chunk_rows(table)
    chunk = min(most, len(hidden))
    chunks = math.ceil(len(hidden) / most)
    project, project_back = (
        model.operators.product(table, chunk, transposed=back, inputs=chunks) for back in (False, True)
    )
    buffer = hidden.new_empty(chunk, table.shape[0])
    gradients, losses, nlls = [], [], []
    total = torch.zeros_like(columns)  # (D) sum of w h
    parts = zip(hidden.split(most), target.split(most), weights.split(most), strict=True)
    for rows, wanted, weight in parts:
        logits = project(rows, bias, buffer[: len(rows)])  # (n, V)
        p, log_sum, own = _solve(model, logits, wanted, 1 - smoothing, wide)
        nll = log_sum - own
        mean = rows.to(wide) @ columns / size + mean_bias  # (n) mean of the logits
        losses.append((1 - smoothing) * nll + smoothing * (log_sum - mean))
        nlls.append(nll)
        if of_bias is not None:
            of_bias += weight @ p.to(wide)
        p = p.to(rows.dtype)
        weighted = rows.to(wide) * weight[:, None]  # (n, D)
        total += weighted.sum(0)
        if table.grad is not None:
            table.grad.addmm_(p.t(), weighted.to(rows.dtype))
        gradient = (project_back(p).to(wide) - uniform * columns) * weight[:, None]
        gradients.append(gradient.to(rows.dtype))
    if smoothing and table.grad is not None:
        table.grad -= (uniform * total).to(table.dtype)
        table.grad[never] += (uniform * total).to(table.dtype)
    if bias is not None and of_bias is not None:
        of_bias -= (uniform * weights.sum()).to(wide)
        of_bias[never] += (uniform * weights.sum()).to(wide)
        bias.grad = of_bias.to(bias.dtype) if bias.grad is None else bias.grad.add_(of_bias.to(bias.dtype))
    return torch.cat(gradients), RowLosses(torch.cat(losses), torch.cat(nlls))


def _solve(
    model: TranslationModel, logits: Tensor, target: Tensor, share: float, wide: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the softmax of logits (n, V), which may be overwritten, less ``share`` at the targets (n).

    Returns:
        that, (n, V); in ``wide`` (n) the logarithms of the normalizers, and the targets' logits.
    """
    solved = model.operators.solve(logits, target, share)
    if solved is not None:
        return logits, solved[1], solved[0]
    top, own = logits.amax(-1).to(wide), logits.gather(1, target[:, None]).squeeze(1).to(wide)
    p = _probabilities(logits, wide)
    # The log of the normalizer from the most likely token, whose p is exact: no second pass of exponentials.
    log_sum = top - p.amax(-1).log()
    p.scatter_add_(1, target[:, None], torch.full_like(own, -share)[:, None])
    return p, log_sum, own


def _probabilities(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """softmax(logits), (n, V) in ``dtype``; overwrites the logits if they have that dtype."""
    if logits.dtype == dtype:
        return torch.softmax(logits, -1, out=logits)
    return torch.softmax(logits, -1, dtype=dtype)


@torch.no_grad()
def negative_log_likelihood(project: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor) -> Tensor:
    """hidden (N, D), target (N) -> (N) negative log-likelihoods in nats. ``project``: (n, D) -> logits (n, V)."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    rows = CHUNK_ROWS if hidden.device.type == "cpu" else _DEVICE_ROWS
    chunks = zip(hidden.split(rows), target.split(rows), strict=True)
    return torch.cat([F.cross_entropy(project(states).to(wide), wanted, reduction="none") for states, wanted in chunks])
