"""The device that PyTorch computes on, and the number of CPU threads."""

from __future__ import annotations

import os
from typing import Literal

import torch

from sparsenmt.errors import UserError


def pick_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device of that name; ``auto`` is CUDA if available, otherwise the CPU.

    Raises:
        UserError: CUDA is wanted but not available.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("PyTorch finds no CUDA device", where="training.device", hint="Set it to auto or cpu.")
    return torch.device(wanted)


def use_threads(wanted: int | None) -> None:
    """Set PyTorch's number of CPU threads: at least 1, at most the number of processors; None: leave it."""
    if wanted is not None:
        torch.set_num_threads(max(min(wanted, os.cpu_count() or wanted), 1))
