"""Operators whose gradients of parameters are sums over all rows of a batch, formed in fp32 also where rows are bf16.

PyTorch's operators for CPUs add bf16 numbers to a sum in bf16: after some hundred rows the next no longer changes it.
Of 4,096 rows that are alike, a third of the gradient of a normalisation's bias is lost. On GPUs they sum in fp32.

Shapes: N rows, D model dimension, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.model.operators import at_least_single

_ROWS = 256
"""Rows that are widened at a time: they stay in the cache."""


class LayerNorm(nn.LayerNorm):
    """Layer normalisation (Ba et al. 2016) over the last dimension."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        if _sums_in_bf16(input, self.weight, self.bias):
            result: Tensor = _LayerNorm.apply(input, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
            return result
        return super().forward(input)


class RMSNorm(nn.Module):
    """Normalisation by the root mean square (Zhang and Sennrich 2019), without mean and bias, in fp32 at least."""

    def __init__(self, dimension: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dimension)), eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        wide = at_least_single(x)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * at_least_single(self.weight)).to(x.dtype)


def look_up(tokens: Tensor, table: Tensor) -> Tensor:
    """tokens (...), table (V, D) -> (..., D): the table's rows of these tokens."""
    if _sums_in_bf16(table, table):
        result: Tensor = _LookUp.apply(tokens, table)  # type: ignore[no-untyped-call]
        return result
    return F.embedding(tokens, table)


def _sums_in_bf16(rows: Tensor, *parameters: Tensor) -> bool:
    """Return True if PyTorch's operator would sum gradients of these parameters in bf16."""
    return (
        rows.dtype == torch.bfloat16
        and rows.device.type == "cpu"
        and torch.is_grad_enabled()
        and any(each.requires_grad for each in parameters)
    )


class _LayerNorm(torch.autograd.Function):
    """Means and deviations are in fp32, too: with weights in fp32 PyTorch returns them so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        shape = weight.shape
        result, mean, deviation = torch.native_layer_norm(x, shape, weight.float(), bias.float(), epsilon)
        ctx.save_for_backward(x, weight, bias, mean, deviation)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, bias, mean, deviation = ctx.saved_tensors
        given, wide = grads[0], (weight.float(), bias.float())
        backward = torch.ops.aten.native_layer_norm_backward
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x, _, _ = backward(given, x, weight.shape, mean, deviation, *wide, [True, False, False])
        sums = torch.zeros(2, len(weight))
        rows = (each.flatten(0, -2).split(_ROWS) for each in (given, x, mean, deviation))
        for part, inputs, *moments in zip(*rows, strict=True):
            found = backward(part.float(), inputs.float(), weight.shape, *moments, *wide, [False, True, True])
            sums += torch.stack(found[1:])
        return of_x, sums[0].to(weight.dtype), sums[1].to(bias.dtype), None


class _LookUp(torch.autograd.Function):
    """Only rows that occur are widened: a table may be much larger than a batch."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return F.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (tokens,), (given,) = ctx.saved_tensors, grads
        rows, places = tokens.unique(return_inverse=True)
        sums = torch.zeros(len(rows), given.shape[-1])
        sums.index_add_(0, places.flatten(), given.flatten(0, -2).float())
        return None, given.new_zeros(ctx.shape).index_copy_(0, rows, sums.to(given.dtype))
