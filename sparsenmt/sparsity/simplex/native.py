"""The compiled alpha-entmax kernel `native.cpp`, used only if its results are right (`sparsenmt.native.library`).

Short rows are solved as many at a time as a vector of the processor has lanes (`native_tiles.h`), long ones one by one
(`native_rows.h`). Without the kernel, `newton` is used.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from sparsenmt.native.address import address, allocating
from sparsenmt.native.choice import Choices
from sparsenmt.native.library import Library, wanted
from sparsenmt.native.sources import SIMPLEX, set_of
from sparsenmt.sparsity.simplex import newton

TOLERANCE = 1e-5
_KEYS = (13, 37, 130)  # one for each path: in tiles, in tiles only forward, row by row
_CHECKED_CORES = (1, 3)
_ROW_WORK = 1 << 13  # scores from which on one more thread pays
FORMULAS = (1.5, 2.0)  # alphas with a formula of their own

Way = Literal["forward", "backward"]


class SimplexKernel:
    """The library's functions on tensors: fp32, on the CPU.

    Attributes:
        cores: threads of every call; None: as many as its work is worth.
    """

    cores: int | None = None

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.choice = Choices(set_of(path))
        self._forward = allocating(library.sparsenmt_simplex_forward)
        self._backward = allocating(library.sparsenmt_simplex_backward)
        for function in (self._forward, self._backward):
            function.argtypes = [pointer] * 7 + [number]

    def faster(self, way: Way, keys: int, alpha: float | None) -> bool:
        """Return True if a pass over rows of this length is faster than `newton`; alpha None: one for each head."""
        return self.choice.prefers(f"entmax {way}", alpha if alpha in FORMULAS else "any", keys)

    def forward(self, scores: Tensor, visible: Tensor | None, counts: Tensor | None, alphas: Tensor) -> Tensor:
        """scores (B, H, Q, K), visible broadcastable to it, counts (B, K), alphas (H) -> mass (B, H, Q, K)."""
        scores = scores.contiguous()
        mass = torch.empty_like(scores)
        rows, heads, queries, keys = scores.shape
        strides: tuple[int, ...] = (0, 0, 0, 0)
        if visible is not None:
            visible = visible.expand(scores.shape)
            strides = visible.stride()
        self._forward(
            address(scores, torch.float32, rows, heads, queries, keys),
            None if visible is None else address(visible, torch.bool, rows, heads, queries, keys, free=4),
            (ctypes.c_int64 * 4)(*strides),
            None if counts is None else address(counts, torch.float32, rows, keys),
            address(alphas, torch.float32, heads),
            mass.data_ptr(),
            (ctypes.c_int64 * 4)(*scores.shape),
            self._threads(scores),
        )
        return mass

    def backward(
        self, mass: Tensor, given: Tensor, counts: Tensor | None, alphas: Tensor, *, of_alpha: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of scores (B, H, Q, K) and, if wanted, of each row's alpha (B, H, Q), from that of the mass."""
        given, shape = given.contiguous(), mass.shape
        rows, heads, _, keys = shape
        gradient = torch.empty_like(mass)
        sums = mass.new_empty(mass.shape[:3]) if of_alpha else None
        self._backward(
            address(mass, torch.float32, *shape),
            address(given, torch.float32, *shape),
            None if counts is None else address(counts, torch.float32, rows, keys),
            address(alphas, torch.float32, heads),
            gradient.data_ptr(),
            None if sums is None else sums.data_ptr(),
            (ctypes.c_int64 * 4)(*shape),
            self._threads(mass),
        )
        return gradient, sums

    def _threads(self, scores: Tensor) -> int:
        worth = max(1, min(torch.get_num_threads(), scores.numel() // _ROW_WORK))
        return worth if self.cores is None else self.cores


def native(scores: Tensor) -> SimplexKernel | None:
    """The kernel, if it takes such scores."""
    if scores.dtype != torch.float32 or scores.device.type != "cpu" or not scores.numel():
        return None
    return _found() if wanted() else None


@functools.cache
def _found() -> SimplexKernel | None:
    return Library(SIMPLEX, _checked).find()


def _checked(library: Path) -> SimplexKernel | None:
    """Load the library; None if it disagrees with `newton`."""
    found = SimplexKernel(library)
    return found if error(found) <= TOLERANCE else None


def error(kernel: SimplexKernel) -> float:
    """The largest deviation from `newton` in float64: values and gradients of small problems, by 1 and 3 threads."""
    before = kernel.cores
    try:
        return max(_error(kernel, keys) for keys in _KEYS)
    finally:
        kernel.cores = before


def _error(kernel: SimplexKernel, keys: int) -> float:
    shape = (2, 6, 5, keys)
    steps = torch.arange(2 * 6 * 5 * keys, dtype=torch.float32).view(shape)
    scores, given = (steps * 0.7).sin() * 3 + (steps * 0.013).cos(), (steps * 1.3).cos()
    visible = (steps % 7 != 3) & (steps[..., :1] % 3 != 1)
    alphas = torch.tensor([1.0, 1.01, 1.3, 1.5, 1.8, 2.0])
    worst = 0.0
    for counts in (None, 1.0 + torch.arange(2 * keys, dtype=torch.float32).view(2, keys) % 4):
        rows = alphas.double()[None, :, None].expand(shape[:3]).reshape(-1, 1)
        hidden = scores.double().masked_fill(~visible, -torch.inf).flatten(0, 2)
        spread = None if counts is None else counts.double()[:, None, None].expand(shape).flatten(0, 2)
        expected = newton.weights(hidden, rows, spread)
        slopes, bends = newton.gradients(expected, given.double().flatten(0, 2), rows, spread, of_alpha=True)
        for cores in _CHECKED_CORES:
            kernel.cores = cores
            mass = kernel.forward(scores, visible, counts, alphas)
            found = mass, *kernel.backward(mass, given, counts, alphas, of_alpha=True)
            pairs = zip(found, (expected, slopes, bends), strict=True)
            worst = max(
                worst,
                *(_distance(a.double().flatten(), b.flatten()) for a, b in pairs if a is not None and b is not None),
            )
        visible = visible.mT.contiguous().mT  # other strides
    return worst


def _distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative where values are above 1; infinity for NaN."""
    return float(((found - expected).abs() / expected.abs().clamp_min(1)).nan_to_num(nan=float("inf")).max())
