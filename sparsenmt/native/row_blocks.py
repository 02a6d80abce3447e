"""Products of training in bf16 whose numbers of rows return from batch to batch, on processors with AMX.

oneDNN compiles a kernel for every shape of a product, in 1 to 15 ms, and keeps some of them. Batches of sentences have
ever other numbers of rows: making kernels took a third as long as the products (docs/records/experiments.md).
Here the rows of a product are a multiple of `_WHOLE`, and the last ones padded to a multiple of `_GRAIN`. The gradient
of a weight sums over the rows: that is MKL's product, which compiles nothing, where PyTorch's library has it.
Shapes: N rows, `in` and `out` the sizes of a weight (out, in).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.address import address
from sparsenmt.native.agreement import distance, numbers
from sparsenmt.native.instruction_sets import usable_sets
from sparsenmt.native.library import wanted
from sparsenmt.native.onednn import trained_linear

_WHOLE, _GRAIN, _FEW = 512, 128, 64  # rows; few are multiplied as they are
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112  # of CBLAS
_TOLERANCE = 1e-5


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x @ weight.T + bias``, as `F.linear`, for a weight that `fits`; x (..., in), bias (out)."""
    return trained_linear(x, weight, bias, product, sum_of_rows)


def fits(weight: Tensor) -> bool:
    """Return True if products with this weight are computed here."""
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and _pays()


def multiply(matrix: Tensor, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """matrix (in, out), x (N, in), bias (out) -> x @ matrix + bias, (N, out). It may be written to ``out``."""
    whole = len(x) // _WHOLE * _WHOLE
    if len(x) == whole or len(x) < _FEW:
        return _multiply(x, matrix, bias, out)
    rest = F.pad(x[whole:], (0, 0, 0, -len(x) % _GRAIN))
    last = _multiply(rest, matrix, bias, None)[: len(x) - whole]
    if not whole:
        return last
    out = x.new_empty(len(x), matrix.shape[1]) if out is None else out
    _multiply(x[:whole], matrix, bias, out[:whole])
    out[whole:] = last
    return out


def _multiply(x: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
    return torch.mm(x, matrix, out=out) if bias is None else torch.addmm(bias, x, matrix, out=out)


def product(weight: Tensor, rows: int, *, transposed: bool = False, inputs: int = 1) -> Callable[..., Tensor]:
    """Make the product with a weight, as `onednn.Product`; nothing depends on the numbers of rows and inputs."""
    return partial(multiply, weight.detach() if transposed else weight.detach().t())


def sum_of_rows(given: Tensor, x: Tensor) -> Tensor:
    """given (N, out), x (N, in), in bf16 -> given.T @ x, (out, in): in fp32 by MKL, otherwise in bf16 by PyTorch."""
    return _product(given.contiguous(), x.contiguous()) if _agrees() else given.t() @ x


def _product(given: Tensor, x: Tensor) -> Tensor:
    (rows, out), inner = given.shape, x.shape[1]
    result = torch.empty(out, inner)
    _mkl()(
        *(_ROW_MAJOR, _TRANSPOSED, _PLAIN, out, inner, rows, 1.0),
        *(address(given, torch.bfloat16, rows, out), out, address(x, torch.bfloat16, rows, inner), inner),
        *(0.0, address(result, torch.float32, out, inner), inner),
    )
    return result


@cache
def _mkl() -> Any:
    """MKL's product of bf16 matrices with sums in fp32, of PyTorch's library; None: it has none."""
    try:
        found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).cblas_gemm_bf16bf16f32
    except (OSError, AttributeError):
        return None
    size, pointer, real = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
    found.argtypes = [*[size] * 6, real, pointer, size, pointer, size, real, pointer, size]
    return found


@cache
def _agrees() -> bool:
    """Return True if MKL's product exists and agrees with PyTorch's on a probe."""
    given, x = numbers(70, 48).bfloat16(), numbers(70, 32, speed=0.3).bfloat16()
    return _mkl() is not None and distance(_product(given, x), given.double().t() @ x.double()) <= _TOLERANCE


@cache
def _pays() -> bool:
    """Return True if this processor multiplies so fast that compiling counts."""
    best = next((each.name for each in usable_sets()), None)
    return best == "amx" and wanted() and torch.backends.mkldnn.is_available()
