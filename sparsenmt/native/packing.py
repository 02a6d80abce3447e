"""Matrices in the layout of the compiled products.

Shapes: N rows, D inner dimension.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.address import address, check

_COLUMNS = 32  # of the weights' N, in a panel
_LEVELS = 127  # the largest absolute value of an int8 weight
_ROWS_AT_ONCE = 2048  # that are rounded to int8: the intermediate results of a whole table would double its memory
_VECTOR_BYTES = 64
_STRUCT = "_struct"  # the attribute that holds an object's C struct
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


S = TypeVar("S", bound=ctypes.Structure)


class _WithStruct(Generic[S]):
    """An object with a C struct that points to its tensors, made when it is first needed."""

    def _make(self) -> S:
        """Make the C struct; ValueError if a tensor has another dtype or shape than the library reads."""
        raise NotImplementedError

    @property
    def struct(self) -> S:
        """The C struct, valid as long as this object; one, also for several threads at the same time."""
        known: S | None = vars(self).get(_STRUCT)
        return vars(self).setdefault(_STRUCT, self._make()) if known is None else known

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the C struct: it points to these tensors, and a copy makes its own."""
        return {name: value for name, value in vars(self).items() if name != _STRUCT}


@dataclass(frozen=True)
class PackedMatrix(_WithStruct[PackedMatrixStruct]):
    """A matrix (N, D) in the layout of `Kernels.product`; of int8, a weight is its level times the scale of its row."""

    panels: Tensor  # (N / 32, D / group, 32, group), rounded up; the numbers of a group have 4 bytes together
    bias: Tensor | None  # (N) fp32
    inner: int  # D
    outer: int  # N
    dtype: torch.dtype
    scales: Tensor | None = None  # (N) fp32, of int8
    sums: Tensor | None = None  # (N) int32, of int8: of a row's levels
    most_of_pair: int = 0  # of int8, see `ProductLayout`

    def _make(self) -> PackedMatrixStruct:
        group, count = 4 // self.dtype.itemsize, self.outer
        shape = (-(-count // _COLUMNS), -(-self.inner // group), _COLUMNS, group)
        panels = address(self.panels, self.dtype, *shape)
        return PackedMatrixStruct(panels, *_by_row(self), self.inner, self.outer, KINDS[self.dtype])

    def rows(self, numbers: Tensor) -> Tensor:
        """Numbers (...) of rows -> (..., D): rows of a matrix of fp32, bit for bit; ValueError for another dtype."""
        if self.dtype != torch.float32:
            raise ValueError(f"a matrix that was rounded to {self.dtype} has lost its rows")
        return self.panels[numbers // _COLUMNS, :, numbers % _COLUMNS, 0]

    def scratch(self, rows: int) -> int:
        """Bytes of scratch for a product with inputs of ``rows`` rows."""
        return rows * (4 * self.panels.shape[1] + 8)


class RowTableStruct(ctypes.Structure):
    """The C struct of a table of rows."""

    _fields_ = (
        *fields(ctypes.c_void_p, "rows", "scales", "sums", "bias"),
        *fields(ctypes.c_int64, "inner", "kind"),
    )


@dataclass(frozen=True)
class RowTable(_WithStruct[RowTableStruct]):
    """A matrix (N, D) of which a product reads single rows, `Kernels.next_listed`; int8 as in `PackedMatrix`."""

    rows: Tensor  # (N, D), contiguous
    bias: Tensor | None  # (N) fp32
    scales: Tensor | None = None  # (N) fp32, of int8
    sums: Tensor | None = None  # (N) int32, of int8: of a row's levels
    most_of_pair: int = 0  # of int8, see `ProductLayout`

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its numbers."""
        return self.rows.dtype

    @property
    def outer(self) -> int:
        """N."""
        return self.rows.shape[0]

    @property
    def inner(self) -> int:
        """D."""
        return self.rows.shape[1]

    def _make(self) -> RowTableStruct:
        rows = address(self.rows, self.dtype, self.outer, self.inner)
        return RowTableStruct(rows, *_by_row(self), self.inner, KINDS[self.dtype])


def _by_row(packed: PackedMatrix | RowTable) -> list[int | None]:
    """The addresses of a matrix's scales, sums and bias, null for None; ValueError if int8 lacks scales or sums."""
    check(packed.dtype != torch.int8 or not (packed.scales is None or packed.sums is None), "scales and sums of int8")
    parts = ((packed.scales, torch.float32), (packed.sums, torch.int32), (packed.bias, torch.float32))
    return [None if each is None else address(each, dtype, packed.outer) for each, dtype in parts]


@dataclass(frozen=True)
class ProductLayout:
    """The packed matrices that a library multiplies.

    Args:
        dtypes: those that the processor has products of.
        most_of_pair: the largest sum of two neighbouring int8 weights of the same sign; 0: any. Where the processor
            adds pairs of products in 16 bits, larger sums would saturate.
    """

    dtypes: frozenset[torch.dtype]
    most_of_pair: int

    def pack(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> PackedMatrix:
        """Pack a matrix (N, D) with its bias (N), see `pack`."""
        return pack(weight, bias, dtype, self.most_of_pair)

    def row_table(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> RowTable:
        """Make the table of a matrix (N, D) with its bias (N), see `row_table`."""
        return row_table(weight, bias, dtype, self.most_of_pair)

    def check(self, *packed: PackedMatrix | RowTable) -> None:
        """Raise ValueError unless the library has products of all these matrices."""
        check({each.dtype for each in packed} <= self.dtypes, "a processor with products of these dtypes")
        pairs = {each.most_of_pair for each in packed if each.dtype == torch.int8}
        check(pairs <= {self.most_of_pair}, f"int8 weights packed for sums of two up to {self.most_of_pair}")


def row_table(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, most_of_pair: int = 0) -> RowTable:
    """Make the table of a matrix (N, D) with its bias (N), rounded as `pack` rounds; in fp32 it is the matrix itself.

    Raises:
        ValueError: its rows are no whole number of vectors, see `has_whole_rows`.
    """
    if not has_whole_rows(weight, dtype):
        raise ValueError(f"rows of {weight.shape[1]} numbers are no whole number of vectors in {dtype}")
    bias, weight = _plain(bias), weight.detach()
    if dtype != torch.int8:
        return RowTable(weight.to(dtype).contiguous(), bias)
    levels, scales, sums = _levels(weight, most_of_pair)
    return RowTable(levels, bias, scales, sums, most_of_pair)


def has_whole_rows(weight: Tensor, dtype: torch.dtype) -> bool:
    """Return True if a row of the matrix (N, D) is a whole number of vectors in this dtype."""
    return weight.shape[1] * dtype.itemsize % _VECTOR_BYTES == 0


def pack(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, most_of_pair: int = 0) -> PackedMatrix:
    """Pack a matrix (N, D) with its bias (N): in fp32, bf16, or int8 with a scale for each of the N rows.

    Args:
        most_of_pair: of a library's `ProductLayout`.
    """
    outer, inner = weight.shape
    bias, weight = _plain(bias), weight.detach().float()
    if dtype != torch.int8:
        return PackedMatrix(_panels(weight.to(dtype), 4 // dtype.itemsize), bias, inner, outer, dtype)
    levels, scales, sums = _levels(weight, most_of_pair)
    return PackedMatrix(_panels(levels, 4), bias, inner, outer, dtype, scales, sums, most_of_pair)


def _plain(bias: Tensor | None) -> Tensor | None:
    """A bias (N) as kernels read it: fp32, contiguous, without a gradient; a copy only if it is otherwise."""
    return None if bias is None else bias.detach().float().contiguous()


def _levels(weight: Tensor, most_of_pair: int) -> tuple[Tensor, Tensor, Tensor]:
    """(N, D) fp32 -> int8 levels (N, D), the scales (N) fp32 of its rows, and the sums (N) int32 of their levels."""
    scales, sums = weight.new_empty(weight.shape[0]), torch.empty(weight.shape[0], dtype=torch.int32)
    levels = ask_for_huge_pages(torch.empty(weight.shape, dtype=torch.int8))
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        torch.div(weight[part].abs().amax(1), _LEVELS, out=scales[part])
        if most_of_pair:
            torch.maximum(scales[part], _largest_pair(weight[part]) / (most_of_pair - 1), out=scales[part])
        rounded = (weight[part] / scales[part].clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round_()
        levels[part] = rounded
        sums[part] = levels[part].sum(1)
    return levels, scales, sums


def _largest_pair(weight: Tensor) -> Tensor:
    """(N, D) -> (N): the largest absolute sum of two neighbours 2i and 2i + 1 in a row."""
    filled = F.pad(weight, (0, weight.shape[1] % 2))
    return (filled[:, ::2] + filled[:, 1::2]).abs().amax(1)


def _panels(weight: Tensor, group: int) -> Tensor:
    """(N, D) -> `PackedMatrix.panels`, a copy, padded with zeros; ``group``: numbers of 4 bytes together."""
    outer, inner = weight.shape
    missing = (0, -inner % group, 0, -outer % _COLUMNS)
    filled = F.pad(weight, missing) if any(missing) else weight
    panels = filled.view(-1, _COLUMNS, filled.shape[1] // group, group).transpose(1, 2)
    return ask_for_huge_pages(torch.empty(panels.shape, dtype=panels.dtype)).copy_(panels)


_HUGE_PAGE, _PAGE = 1 << 21, 1 << 12  # bytes
_MADV_HUGEPAGE = 14  # of Linux


def ask_for_huge_pages(x: Tensor) -> Tensor:
    """Let Linux put the memory of a large tensor, which was not written yet, on pages of 2 MB; return the tensor.

    A step reads all weights once, and with pages of 4 kB the processor would look up thousands of them each time.
    """
    size = x.numel() * x.element_size()
    if sys.platform == "linux" and size >= _HUGE_PAGE:
        first = -(-x.data_ptr() // _PAGE) * _PAGE
        with suppress(OSError, AttributeError):  # an optimisation: an error code of the call is ignored, too
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(first), ctypes.c_size_t(x.data_ptr() + size - first), _MADV_HUGEPAGE
            )
    return x
