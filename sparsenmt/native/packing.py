"""Matrices in the layout of the compiled products.

Shapes: N rows, D inner dimension.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_COLUMNS = 32  # of a panel of weights
_LEVELS = 127
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


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
        pointers = (None if x is None else x.data_ptr() for x in (self.panels, self.scales, self.sums, self.bias))
        return PackedMatrixStruct(*pointers, self.inner, self.outer, _KINDS[self.dtype])

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
