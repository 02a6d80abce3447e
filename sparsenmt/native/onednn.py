"""Products by oneDNN with a weight in the blocked layout of its kernels, and those of training in fp32 on a CPU.

Where PyTorch's own product is MKL's, this can be a fifth faster in training, although the weight, which changes with
every update, is reordered at every call. The gradient of the weight would need transposed copies of activations, which
cost more than they bring. PyTorch's private operators are used only if they agree with `F.linear` on a probe, and in
training where the table of choices has them faster (`native.choice`).
Shapes: N rows, `in` and `out` the sizes of a weight (out, in).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.agreement import distance
from sparsenmt.native.choice import Choices
from sparsenmt.native.instruction_sets import usable_sets
from sparsenmt.native.library import wanted

_LEAST_WORK = 1 << 22  # multiplications; products with less are left to PyTorch
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_NAMES = {
    **{"none": ("none", ""), "relu": ("relu", ""), "silu": ("swish", "")},
    **{"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")},
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x @ weight.T + bias``, as `F.linear`: x (..., in), weight (out, in), bias (out)."""
    if torch.is_grad_enabled() and x.requires_grad | weight.requires_grad and _suits(weight, _rows(x)):
        return trained_linear(x, weight, bias, Product, lambda given, x: given.t() @ x)
    return F.linear(x, weight, bias)


class Product:
    """The product with a weight (out, in), ``x @ weight.T``, or ``x @ weight``, by the faster operators.

    It is computed outside of autograd.

    Args:
        rows: N of the inputs. The weight is reordered here; PyTorch multiplies inputs of fewer rows, as the last of a
            batch: oneDNN would make a kernel for each of their numbers.
        transposed: True for ``x @ weight``: `in` and `out` change places.
        inputs: how many inputs will be multiplied with the reordered weight.
    """

    def __init__(self, weight: Tensor, rows: int, *, transposed: bool = False, inputs: int = 1) -> None:
        self._matrix, self._rows = weight.detach().t() if transposed else weight.detach(), rows
        kind = f"{'gradient' if transposed else 'linear'}{' kept' if inputs > 1 else ''}"
        faster = _suits(weight, rows) and _choices().prefers(kind, *weight.shape, rows)
        self._packed = reorder(self._matrix, rows) if faster else None

    def __call__(self, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """x (N, in) -> (N, out), plus the bias (out). It may be written to ``out``."""
        if self._packed is not None and len(x) >= self._rows:
            return multiply(x, self._packed, bias)
        if bias is None:
            return torch.mm(x, self._matrix.t(), out=out)
        return torch.addmm(bias, x, self._matrix.t(), out=out)


def trained_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    product: Callable[..., Callable[..., Tensor]],
    sum_of_rows: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return ``x @ weight.T + bias``, with gradients.

    Args:
        product: makes the products of the output and of the gradient of x, as `Product`.
        sum_of_rows: given (N, out), x (N, in) -> given.T @ x, (out, in).
    """
    result: Tensor = _Linear.apply(x, weight, bias, product, sum_of_rows)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    """The linear layer of `trained_linear`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, product: Any, sum_of_rows: Any) -> Tensor:
        """x (..., in) -> (..., out)."""
        ctx.save_for_backward(x, weight)
        ctx.product, ctx.sum_of_rows = product, sum_of_rows
        rows = product(weight, _rows(x))(x.reshape(-1, x.shape[-1]), bias)
        # Of a view that is made here, autograd would refuse a ReLU in place.
        shaped: Tensor = torch.ops.aten._unsafe_view(rows, [*x.shape[:-1], rows.shape[1]])
        return shaped

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        given = grads[0].reshape(-1, weight.shape[0])  # (N, out)
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        return (
            ctx.product(weight, len(given), transposed=True)(given).view(x.shape) if of_x else None,
            ctx.sum_of_rows(given, x.reshape(-1, weight.shape[1])).to(weight.dtype) if of_weight else None,
            given.sum(0) if of_bias else None,
            *(None, None),
        )


def _rows(x: Tensor) -> int:
    """N of x (..., in)."""
    return x.shape[:-1].numel()


def _suits(weight: Tensor, rows: int) -> bool:
    """Return True if oneDNN multiplies such a weight (out, in) with N ``rows``, and the product is no small one."""
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or rows * weight.numel() < _LEAST_WORK:
        return False
    return wanted() and works(torch.float32)


def reorder(matrix: Tensor, rows: int) -> Tensor:
    """Reorder a weight (out, in) for inputs of about N ``rows``; a copy, which only `multiply` reads."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix, rows)
    return packed


def multiply(x: Tensor, packed: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    """x (..., in), a weight (out, in) from `reorder`, bias (out) -> activation(x weight' + bias), (..., out)."""
    name, algorithm = _NAMES[activation]
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, bias, name, [], algorithm)
    return result


@functools.cache
def works(dtype: torch.dtype) -> bool:
    """Return True if PyTorch's private operators exist and agree with the public ones in this dtype."""
    if dtype not in _TOLERANCES or not torch.backends.mkldnn.is_available():
        return False
    x, bias = (torch.linspace(-1, 1, 5 * 48).view(5, 48).cos(), torch.linspace(-1, 1, 32))
    weight = torch.linspace(-9, 9, 32 * 48).view(32, 48).sin()
    x, bias, weight = x.to(dtype), bias.to(dtype), weight.to(dtype)
    activations = (F.relu, F.silu, F.gelu, functools.partial(F.gelu, approximate="tanh"))
    layouts = (weight, weight.t().contiguous().t())
    try:
        found = [multiply(x, reorder(each, len(x)), bias) for each in layouts]
        found += [multiply(x, reorder(weight, len(x)), None, name) for name in ("relu", "silu", "gelu", "gelu_tanh")]
    except (AttributeError, RuntimeError):  # the private operators have changed or are not built in
        return False
    product = F.linear(x, weight)
    expected = [F.linear(x, weight, bias)] * 2 + [activate(product) for activate in activations]
    pairs = ((ours.float(), theirs.float()) for ours, theirs in zip(found, expected, strict=True))
    return max(distance(ours, theirs) / float(theirs.abs().max()) for ours, theirs in pairs) <= _TOLERANCES[dtype]


@functools.cache
def _choices() -> Choices:
    """The ratios for the best instruction set of this processor."""
    return Choices(next((each.name for each in usable_sets()), ""))
