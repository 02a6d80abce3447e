"""The agreement of a compiled library with PyTorch: numbers of test problems, differences, and the largest of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from sparsenmt.native.library import LoadedLibrary

_THREADS = (1, 3)


def largest_error(library: LoadedLibrary, errors: Callable[[int], Iterable[float]]) -> float:
    """The largest error of a library with one thread and with several, over the tolerance: it agrees up to 1.

    errors: number of threads -> the errors of its functions, each over its tolerance.
    """
    before, worst = library.cores, 0.0
    try:
        for threads in _THREADS:
            library.cores = threads
            worst = max(worst, *errors(threads))
    finally:
        library.cores = before
    return worst


def numbers(*shape: int, speed: float = 0.7) -> Tensor:
    """A tensor of this shape, fp32: the sines of ``speed`` times 0, 1, 2, ...; the same on every machine and run."""
    return (torch.arange(math.prod(shape), dtype=torch.float32).view(shape) * speed).sin()


def distance(found: Tensor, expected: Tensor, *, relative: bool = False) -> float:
    """The largest absolute difference of two tensors of one shape; infinity for NaN.

    relative: divide a difference by the absolute value that is expected, where that is above 1.
    """
    differences = (found.to(expected.dtype) - expected).abs()
    if relative:
        differences = differences / expected.abs().clamp_min(1)
    return float(differences.nan_to_num(nan=math.inf).max())
