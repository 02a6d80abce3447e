"""The operators of layers that an engine or a trainer may replace by faster ones: here PyTorch's.

Shapes: B rows, H heads, Q queries, K keys, E head size.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.model.dropout import Draws, plain_drop
from sparsenmt.model.dropout import dropout as drop_out
from sparsenmt.process.devices import avoid_cudnn_attention

_MOST_PLAIN_SCORES = 1 << 24  # of a batch: 32 MB in bf16


class MatrixProduct(Protocol):
    """A product with a weight."""

    def __call__(self, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """x (N, in) -> (N, out), plus the bias (out). It may be written to ``out``."""
        ...


def at_least_single(scores: Tensor) -> Tensor:
    """Convert to fp32, unless the scores are float64."""
    return scores if scores.dtype == torch.float64 else scores.float()


class Operators:
    """PyTorch's operators."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool) -> Tensor:
        """q (B, H, Q, E), k and v (B, H, K, E) -> (B, H, Q, E): softmax(q k' / sqrt(E) + mask) v.

        Args:
            mask: broadcastable to (B, H, Q, K); minus infinity hides a key.
            dropout: of the weights.
            causal: no query sees later keys; then there is no mask.
        """
        if _plain_is_faster(q, k, dropout):
            return self._attend_plain(q, k, v, mask, dropout, causal)
        if q.device.type == "cuda" and not torch.compiler.is_compiling():
            avoid_cudnn_attention()
        if mask is None and causal:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)

    def attend_window(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor, reach: tuple[int, int]) -> Tensor | None:
        """Softmax attention within a window, in one operator: q, k and v (B, H, L, E) -> (B, H, L, E).

        Queries that see no key get zeros.

        Args:
            valid: (B, L): the keys that are not hidden.
            reach: the keys before and after its own position that a query sees.

        Returns:
            None where bands of keys are gathered instead.
        """
        return None

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute ``x @ weight.T + bias``: x (..., in), weight (out, in), bias (out)."""
        return F.linear(x, weight, bias)

    def drop(self, x: Tensor, draws: Draws, dropped: int, added: Tensor | None) -> Tensor:
        """Compute `dropout.plain_drop`."""
        return plain_drop(x, draws, dropped, added)

    def product(self, weight: Tensor, rows: int, *, transposed: bool = False, inputs: int = 1) -> MatrixProduct:
        """Make the product with a weight (out, in), outside of autograd: ``x @ weight.T``, or ``x @ weight``.

        Args:
            rows: how many rows inputs will have.
            transposed: True for ``x @ weight``.
            inputs: how many inputs will be multiplied.
        """
        matrix = weight.detach() if transposed else weight.detach().t()

        def multiply(x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
            return torch.mm(x, matrix, out=out) if bias is None else torch.addmm(bias, x, matrix, out=out)

        return multiply

    def solve(self, logits: Tensor, target: Tensor, share: float) -> tuple[Tensor, Tensor] | None:
        """Overwrite logits (N, V) by their softmax less ``share`` at the target (N).

        Returns:
            the logits of the targets and the logarithms of the normalizers, (N) in fp32; None: there is no operator.
        """
        return None

    def _attend_plain(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool
    ) -> Tensor:
        """(B, H, Q, E) by plain products, with a matrix of weights."""
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        if mask is not None:
            scores = scores + mask.to(scores.dtype)
        elif causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        return drop_out(torch.softmax(scores, -1), dropout, self.drop) @ v


PYTORCH = Operators()


def _plain_is_faster(q: Tensor, k: Tensor, dropout: float) -> bool:
    """Return True on a CPU with dropout, which the fused kernel lacks, or in bf16 training, where it is slower."""
    if q.device.type != "cpu":
        return False
    training = q.requires_grad and q.dtype == torch.bfloat16
    return dropout > 0 or (training and q.shape[:3].numel() * k.shape[2] <= _MOST_PLAIN_SCORES)


def use_operators(model: nn.Module, operators: Operators) -> None:
    """Let all modules of a model that have operators use these."""
    for module in model.modules():
        if isinstance(getattr(module, "operators", None), Operators):
            module.operators = operators  # type: ignore[assignment]
