"""Matrices in the layout of the compiled products.

Shapes: N rows, D inner dimension.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.address import address

_COLUMNS = 32  # of a panel of weights
_LEVELS = 127
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Numbers of the dtypes of packed matrices in the library."""


def fields(kind: type, *names: str) -> list[tuple[str, type]]:
    """The fields of a C struct that have the same type."""
    return [(name, kind) for name in names]


class PackedMatrixStruct(ctypes.Structure):
    """The C struct of a packed matrix."""

    _fields_ = (
        *fields(ctypes.c_void_p, "panels", "scales", "sums", "bias"),
        *fields(ctypes.c_int64, "inner", "outer", "kind"),
    )


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix (N, D) in the layout of `Kernels.product`."""

    panels: Tensor
    bias: Tensor | None  # (N)
    inner: int
    outer: int
    dtype: torch.dtype
    scales: Tensor | None = None  # (N), of int8
    sums: Tensor | None = None  # (N), of int8, over the inner dimension

    @functools.cached_property
    def matrix(self) -> PackedMatrixStruct:
        """The C struct; valid as long as this object."""
        group, count = 4 // self.dtype.itemsize, self.outer
        shape = (-(-count // _COLUMNS), -(-self.inner // group), _COLUMNS, group)
        scales = sums = None
        if self.dtype == torch.int8:
            if self.scales is None or self.sums is None:
                raise ValueError("a matrix packed to int8 needs scales and sums")
            scales, sums = address(self.scales, torch.float32, count), address(self.sums, torch.int32, count)
        bias = None if self.bias is None else address(self.bias, torch.float32, count)
        panels = address(self.panels, self.dtype, *shape)
        return PackedMatrixStruct(panels, scales, sums, bias, self.inner, self.outer, KINDS[self.dtype])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the C struct: it points to these tensors, and a copy makes its own."""
        return {name: value for name, value in vars(self).items() if name != "matrix"}

    def scratch(self, rows: int) -> int:
        """Bytes of scratch for a product with ``rows`` rows."""
        return rows * (4 * self.panels.shape[1] + 8)


def pack(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> PackedMatrix:
    """Pack a matrix (N, D) with its bias (N): in fp32, bf16, or int8 with a scale for each of the N rows."""
    outer, inner = weight.shape
    bias = None if bias is None else bias.detach().float().contiguous()
    weight = weight.detach().float()
    if dtype != torch.int8:
        return PackedMatrix(_panels(weight.to(dtype), 4 // dtype.itemsize), bias, inner, outer, dtype)
    scales = weight.abs().amax(1).div_(_LEVELS)
    levels = (weight / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round_()
    sums = levels.sum(1).to(torch.int32)
    return PackedMatrix(_panels(levels.to(torch.int8), 4), bias, inner, outer, dtype, scales, sums)


def _panels(weight: Tensor, group: int) -> Tensor:
    """(N, D) -> (panels, groups, columns of a panel, group), padded with zeros."""
    outer, inner = weight.shape
    filled = F.pad(weight, (0, -inner % group, 0, -outer % _COLUMNS))
    return filled.view(-1, _COLUMNS, filled.shape[1] // group, group).transpose(1, 2).contiguous()
