"""The solver of alpha-entmax that engines and trainers give to a model: a kernel (`sparsity/simplex/native.cpp`).

Short rows are solved as many at a time as a vector of the processor has lanes (`native_tiles.h`), long ones one by one
(`native_rows.h`). The kernel is used only if its results are right (`native.library`), otherwise `newton` is.

Shapes: B rows, H heads, Q queries, K keys.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from sparsenmt.native.address import address
from sparsenmt.native.agreement import distance, largest_error
from sparsenmt.native.choice import Choices
from sparsenmt.native.library import Library, LoadedLibrary, wanted
from sparsenmt.native.sources import SIMPLEX, set_of
from sparsenmt.sparsity.simplex import newton
from sparsenmt.sparsity.simplex.function import Solver
from sparsenmt.sparsity.simplex.transform import EntmaxTransform

_TOLERANCE = 1e-5
_KEYS = (13, 37, 130)  # one for each path: in tiles, in tiles only forward, row by row
FORMULAS = (1.5, 2.0)  # alphas with a formula of their own


class SimplexKernel(LoadedLibrary, Solver):
    """`Solver` by the library's functions, for scores in fp32 on the CPU, where ``choice`` prefers them."""

    least_work = 1 << 13  # scores

    def __init__(self, path: Path) -> None:
        arguments = [ctypes.c_void_p] * 7 + [ctypes.c_int]
        super().__init__(path, {}, {f"sparsenmt_simplex_{way}": arguments for way in ("forward", "backward")})
        self.choice = Choices(set_of(path))

    def weights(self, scores: Tensor, alpha: float | Tensor, visible: Tensor | None, counts: Tensor | None) -> Tensor:
        if not self._is_faster("forward", scores, alpha):
            return super().weights(scores, alpha, visible, counts)
        return self.forward(scores, visible, counts, _each_head(alpha, scores))

    def gradients(
        self, mass: Tensor, given: Tensor, alpha: float | Tensor, counts: Tensor | None, *, of_alpha: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not self._is_faster("backward", mass, alpha):
            return super().gradients(mass, given, alpha, counts, of_alpha=of_alpha)
        return self.backward(mass, given, counts, _each_head(alpha, mass), of_alpha=of_alpha)

    def _is_faster(self, way: str, rows: Tensor, alpha: float | Tensor) -> bool:
        """Return True if the kernel takes rows (B, H, Q, K), and is faster than `newton`."""
        if rows.dtype != torch.float32 or rows.device.type != "cpu" or not rows.numel():
            return False
        known = not isinstance(alpha, Tensor) and alpha in FORMULAS
        return self.choice.prefers(f"entmax {way}", alpha if known else "any", rows.shape[-1])

    def forward(self, scores: Tensor, visible: Tensor | None, counts: Tensor | None, alphas: Tensor) -> Tensor:
        """scores (B, H, Q, K), visible broadcastable to it, counts (B, K), alphas (H) -> mass (B, H, Q, K)."""
        scores = scores.contiguous()
        mass = torch.empty_like(scores)
        rows, heads, queries, keys = scores.shape
        strides: tuple[int, ...] = (0, 0, 0, 0)
        if visible is not None:
            visible = visible.expand(scores.shape)
            strides = visible.stride()
        self.library.sparsenmt_simplex_forward(
            address(scores, torch.float32, rows, heads, queries, keys),
            None if visible is None else address(visible, torch.bool, rows, heads, queries, keys, free=4),
            (ctypes.c_int64 * 4)(*strides),
            None if counts is None else address(counts, torch.float32, rows, keys),
            address(alphas, torch.float32, heads),
            mass.data_ptr(),
            (ctypes.c_int64 * 4)(*scores.shape),
            self._threads(scores.numel()),
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
        self.library.sparsenmt_simplex_backward(
            address(mass, torch.float32, *shape),
            address(given, torch.float32, *shape),
            None if counts is None else address(counts, torch.float32, rows, keys),
            address(alphas, torch.float32, heads),
            gradient.data_ptr(),
            None if sums is None else sums.data_ptr(),
            (ctypes.c_int64 * 4)(*shape),
            self._threads(mass.numel()),
        )
        return gradient, sums


def simplex_kernel() -> SimplexKernel | None:
    """Return the kernel, if there is one that can be used."""
    return _found() if wanted() else None


def use_kernel(model: nn.Module) -> None:
    """Let the transforms of a model on the CPU use the kernel, if there is one; without transforms it is not loaded."""
    transforms = [module for module in model.modules() if isinstance(module, EntmaxTransform)]
    if transforms and next(model.parameters()).device.type == "cpu" and (found := simplex_kernel()) is not None:
        for transform in transforms:
            transform.solver = found


@functools.cache
def _found() -> SimplexKernel | None:
    return Library(SIMPLEX, SimplexKernel, error).find()


def error(kernel: SimplexKernel) -> float:
    """The largest deviation from `newton` in float64, values and gradients, over the tolerance (`largest_error`)."""
    problems = [each for keys in _KEYS for each in _problems(keys)]
    return largest_error(kernel, lambda threads: (_error(kernel, *each) / _TOLERANCE for each in problems))


def _each_head(alpha: float | Tensor, like: Tensor) -> Tensor:
    """(H)"""
    return alpha.contiguous() if isinstance(alpha, Tensor) else like.new_full((like.shape[1],), alpha)


_Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]


def _problems(keys: int) -> Iterator[tuple[_Inputs, tuple[Tensor | None, ...]]]:
    """Rows of K keys: scores, gradient of the mass, visible, counts and alphas; mass and gradients by `newton`."""
    shape = (2, 6, 5, keys)
    steps = torch.arange(2 * 6 * 5 * keys, dtype=torch.float32).view(shape)
    scores, given = (steps * 0.7).sin() * 3 + (steps * 0.013).cos(), (steps * 1.3).cos()
    visible = (steps % 7 != 3) & (steps[..., :1] % 3 != 1)
    alphas = torch.tensor([1.0, 1.01, 1.3, 1.5, 1.8, 2.0])
    for counts in (None, 1.0 + torch.arange(2 * keys, dtype=torch.float32).view(2, keys) % 4):
        rows = alphas.double()[None, :, None].expand(shape[:3]).reshape(-1, 1)
        hidden = scores.double().masked_fill(~visible, -torch.inf).flatten(0, 2)
        spread = None if counts is None else counts.double()[:, None, None].expand(shape).flatten(0, 2)
        mass = newton.weights(hidden, rows, spread)
        gradients = newton.gradients(mass, given.double().flatten(0, 2), rows, spread, of_alpha=True)
        yield (scores, given, visible, counts, alphas), (mass, *gradients)
        visible = visible.mT.contiguous().mT  # other strides


def _error(kernel: SimplexKernel, inputs: _Inputs, expected: tuple[Tensor | None, ...]) -> float:
    scores, given, visible, counts, alphas = inputs
    mass = kernel.forward(scores, visible, counts, alphas)
    pairs = zip((mass, *kernel.backward(mass, given, counts, alphas, of_alpha=True)), expected, strict=True)
    same = ((a.flatten(), b.flatten()) for a, b in pairs if a is not None and b is not None)
    return max(distance(a, b, relative=True) for a, b in same)
