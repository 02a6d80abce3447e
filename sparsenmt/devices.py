"""The device that PyTorch computes on, and the number of CPU threads."""

from __future__ import annotations

import os

import torch

from sparsenmt.errors import UserError


def pick_device(wanted: str, where: str = "training.device") -> torch.device:
    """Return the device of that name: ``cpu``, ``cuda``, ``cuda:1``; ``auto`` is CUDA if available, otherwise the CPU.

    Args:
        where: the key or option that names it.

    Raises:
        UserError: the machine has no such device.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        there = f"no {wanted}: there are {count} CUDA devices, from cuda:0" if count else "no CUDA device"
        raise UserError(f"PyTorch finds {there}", where=where, hint="Set it to auto or cpu.")
    return device


def use_threads(wanted: int | None) -> None:
    """Set PyTorch's number of CPU threads: at least 1, at most the number of processors; None: leave it."""
    if wanted is not None:
        torch.set_num_threads(max(min(wanted, os.cpu_count() or wanted), 1))
