"""Addresses of tensors for compiled code. It checks no bounds, so that tensors are checked here, without `assert`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor


def address(x: Tensor, dtype: torch.dtype, *shape: int, free: int = 0) -> int:
    """The address of a tensor of this dtype and shape on the CPU.

    Args:
        free: the number of leading axes whose strides are passed along; over the others it must be contiguous.

    Raises:
        ValueError: the tensor has another dtype, shape, layout or device.
    """
    if x.dtype != dtype or x.shape != shape or not x.is_cpu or not (x.is_contiguous() or (free and _ends(x, free))):
        raise ValueError(
            f"compiled code needs {dtype} of shape {shape}, {len(shape) - free} axes contiguous, on the CPU; "
            f"this is {x.dtype} of shape {tuple(x.shape)}, strides {x.stride()}, on {x.device}"
        )
    return x.data_ptr()  # a sparse tensor raises here


def _ends(x: Tensor, free: int) -> bool:
    """Return True if x is contiguous over the axes after the first ``free`` ones."""
    step = 1
    for size, stride in zip(reversed(x.shape[free:]), reversed(x.stride()[free:]), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def allocating(function: Any) -> Any:
    """Let a library's function that returns 1 without enough memory, otherwise 0, raise MemoryError; return it."""
    function.restype, function.errcheck = ctypes.c_int, _refuse_missing_memory
    return function


def _refuse_missing_memory(status: int, function: object, arguments: object) -> None:
    """Raise MemoryError unless the status is 0; called by ctypes after a function."""
    if status:
        raise MemoryError("compiled code has not enough memory for its intermediate results")


def check(holds: bool, what: str) -> None:
    """Raise ValueError unless a condition of compiled code ``holds``; ``what``: the condition, for the message."""
    if not holds:
        raise ValueError(f"compiled code needs {what}")
