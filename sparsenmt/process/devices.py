"""The device that PyTorch computes on, its memory, and the number of CPU threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

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
    if device.type == "cuda":
        avoid_cudnn_attention()
    return device


_CONTAINER_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # v2, v1


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of memory that a process can have at most on a device; None where the system does not say.

    Of the CPU: the machine's memory, or less where a container or ``ulimit -v`` limits it.
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = []
    with suppress(OSError, ValueError, AttributeError):  # no such question on this system
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # not Linux, not limited ("max")
            limits.append(int(Path(path).read_bytes()))
    with suppress(ImportError):
        import resource

        address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [] if address_space == resource.RLIM_INFINITY else [address_space]
    return min((limit for limit in limits if limit > 0), default=None)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; to a GPU it is copied from pinned memory, so that nothing waits for the copy."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def may_hold(condition: Tensor) -> bool:
    """Return False if a bool tensor is False everywhere; on a device True, as the answer would have to be waited for.

    For steps that change nothing where the condition is False: they are left out where the question costs little.
    """
    return condition.device.type != "cpu" or bool(condition.any())


def avoid_cudnn_attention() -> None:
    """Leave cuDNN out of `scaled_dot_product_attention` in this process.

    It makes a plan for every new shape, which takes far longer than the attention itself; and every step of a search
    has another shape, as has nearly every batch. PyTorch's other kernels take any shape. It is called again and again:
    other code of the process may have chosen anew, and ``torch.nn.attention.sdpa_kernel`` restores what was before it.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


_CUBLAS, _DETERMINISTIC = "CUBLAS_WORKSPACE_CONFIG", "training.deterministic"


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Let PyTorch's operators give the same results in every run while a block runs; False: as they were set.

    cuBLAS needs an environment variable for it. It stays: cuBLAS reads it once, when CUDA starts.

    Raises:
        UserError: CUDA was started without the variable; or an operator of the block has no such algorithm.
    """
    if not wanted:
        yield
        return
    if os.environ.get(_CUBLAS) not in (":4096:8", ":16:8"):
        if torch.cuda.is_initialized():
            problem, hint = f"CUDA was started without {_CUBLAS}=:4096:8", "Set the variable before the program starts."
            raise UserError(problem, where=_DETERMINISTIC, hint=hint)
        os.environ[_CUBLAS] = ":4096:8"
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        operator, found, _ = str(error).partition(" does not have a deterministic implementation")
        if not found:
            raise
        hint = "Set it to false, or train another method."
        raise UserError(f"PyTorch has no deterministic {operator} here", where=_DETERMINISTIC, hint=hint) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def use_threads(wanted: int | None) -> None:
    """Set PyTorch's number of CPU threads: at least 1, at most the number of processors; None: leave it."""
    if wanted is not None:
        torch.set_num_threads(max(min(wanted, os.cpu_count() or wanted), 1))
