"""The operators of training: compiled kernels and oneDNN's products on a CPU, where these are faster, with gradients.

Shapes: B sentences, H heads, Q queries, K keys, E head size, N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsenmt.engine.entmax_kernel import use_kernel
from sparsenmt.model.dropout import Draws
from sparsenmt.model.operators import MatrixProduct, Operators, use_operators
from sparsenmt.native import onednn, row_blocks
from sparsenmt.native.gradients import KERNEL_DTYPES, HiddenKeys, attend, attends, gradient_kernels
from sparsenmt.process.runtime import KEPT_KERNELS, RETURNING_KERNELS

_MOST_KEYS, _MOST_REACH = 256, 1024  # of short sentences, of windows


def kept_kernels(weight: Tensor) -> int:
    """Return how many of oneDNN's kernels training keeps, by one of the model's weights: its dtype and device."""
    return RETURNING_KERNELS if weight.dtype == torch.float32 or row_blocks.fits(weight) else KEPT_KERNELS


class TrainingOperators(Operators):
    """Faster operators of training; whatever they do not know is computed by PyTorch's.

    Args:
        device: that of the model; the kernels are those of a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._kernels = gradient_kernels() if device.type == "cpu" else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool) -> Tensor:
        """Attend as `Operators.attend`, by a kernel for short sentences."""
        (batch, _, queries, size), keys = q.shape, k.shape[2]
        fits = max(keys, queries) <= _MOST_KEYS and (not causal or queries == keys)
        shared = mask is None or (mask.shape == (batch, 1, 1, keys) and not mask.requires_grad)
        found = self._kernels if not dropout and fits and shared and attends(q, k, v) else None
        if found is None or not found.choice.prefers("trained attention", q.dtype, size, max(queries, keys)):
            return super().attend(q, k, v, mask, dropout, causal)
        flat = None if mask is None else mask.reshape(batch, keys).float().contiguous()
        return attend(found, q, k, v, HiddenKeys(flat, causal))

    def attend_window(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor, reach: tuple[int, int]) -> Tensor | None:
        """Attend as `Operators.attend_window`, by a kernel."""
        fits = q.shape[2] == k.shape[2] and sum(reach) <= _MOST_REACH
        found = self._kernels if fits and attends(q, k, v) else None
        if found is None or not found.choice.prefers("window attention", q.dtype, q.shape[3], sum(reach)):
            return None
        bias = torch.zeros(q.shape[0], k.shape[2]).masked_fill_(~valid, -torch.inf)
        return attend(found, q, k, v, HiddenKeys(bias, reach=reach))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute ``x @ weight.T + bias`` by the faster operators."""
        return row_blocks.linear(x, weight, bias) if row_blocks.fits(weight) else onednn.linear(x, weight, bias)

    def drop(self, x: Tensor, draws: Draws, dropped: int, added: Tensor | None) -> Tensor:
        """Compute `Operators.drop` by a kernel."""
        found = self._kernels if x.dtype in KERNEL_DTYPES and x.device.type == "cpu" and x.numel() else None
        if found is None or not found.choice.prefers("dropout", x.dtype):
            return super().drop(x, draws, dropped, added)
        return found.drop(x, draws.key, dropped, added)

    def product(self, weight: Tensor, rows: int, *, transposed: bool = False, inputs: int = 1) -> MatrixProduct:
        """Make the product with a weight, in blocks of rows, or by oneDNN, which reorders it here if that is faster."""
        make = row_blocks.product if row_blocks.fits(weight) else onednn.Product
        return make(weight, rows, transposed=transposed, inputs=inputs)

    def solve(self, logits: Tensor, target: Tensor, share: float) -> tuple[Tensor, Tensor] | None:
        """Solve as `Operators.solve`, by a kernel."""
        suits = logits.dtype in KERNEL_DTYPES and logits.device.type == "cpu" and logits.is_contiguous()
        found = self._kernels if suits else None
        if found is None or not found.choice.prefers("loss", logits.dtype, logits.shape[1]):
            return None
        return found.loss(logits, target, share)


def use_training_operators(model: nn.Module, device: torch.device) -> None:
    """Let a model train by the faster operators of a device."""
    use_operators(model, TrainingOperators(device))
    use_kernel(model)
