"""The process: how its CPU threads wait, free memory of its heap, its rank under torchrun. Imports nothing heavy."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sparsenmt.errors import UserError

_SPINS = "10000"
"""Polls of an idle thread of GNU OpenMP before it sleeps; the library's default is 30 times as many.

On cores that no other program uses, training is as fast with either, and slower if threads sleep at once
(`OMP_WAIT_POLICY=passive`). On shared cores, spinning threads slow the other programs down.
"""


def limit_thread_spinning() -> None:
    """Let idle OpenMP threads sleep early, unless the environment sets a policy. Call it before PyTorch is imported."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


_THREADS = "OMP_NUM_THREADS"
_MOST_THREADS = 10_000


def check_thread_variable() -> None:
    """Check the number of threads in the environment, before PyTorch is imported: OpenMP would ignore a wrong one.

    An empty variable counts as one that is not set.

    Raises:
        UserError: it is neither a number of threads nor a list of numbers, those of nested regions.
    """
    value = os.environ.get(_THREADS, "")
    if not value.strip():
        os.environ.pop(_THREADS, None)
        return
    for part in value.split(","):
        number = part.strip()
        if not (number.isascii() and number.isdigit() and len(number) < 6 and 1 <= int(number) <= _MOST_THREADS):
            raise UserError(
                f"the environment variable is '{value}', not a whole number from 1 to {_MOST_THREADS:,}",
                where=_THREADS,
                hint="Name the number of threads, or unset the variable to use all cores.",
            )


KEPT_KERNELS, RETURNING_KERNELS = 16, 64
"""Kernels of a shape that oneDNN and PyTorch's layer above it keep, and how many where shapes return; default: 1,024.

Batches have many shapes, and every kernel keeps memory of its own, all over the heap: with the default, training in
bf16 grows by a third in 60 updates. The layers of one batch use the same kernels, so that few are enough where those of
the next have other shapes. In fp32 oneDNN computes fewer of the products, and there are kernels for all numbers of rows
that come; in blocks of rows (`native.row_blocks`) most shapes return, too (docs/records/experiments.md).
"""
_limits: dict[str, str] = {}  # variables that were set here


def limit_kernel_caches(kept: int = KEPT_KERNELS) -> None:
    """Let oneDNN keep few kernels, unless the environment sets their number. Call it before the first is made."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        if os.environ.get(name) == _limits.get(name):
            os.environ[name] = _limits[name] = str(kept)


_THRESHOLDS, _HEAPS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), ("MALLOC_ARENA_MAX",)
_TUNABLES = "GLIBC_TUNABLES"
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of glibc's mallopt
_LARGEST_ON_HEAP = 32 << 20  # bytes, the most that glibc allows
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MB for later ones, unless the environment sets its thresholds.

    By default it returns large blocks to the system at once, and asks for them again: an update of a Transformer then
    spends a twentieth of its time on pages that the system fills with zeros (docs/records/experiments.md). Memory that
    was freed only shrinks by `trim_heap` afterwards. With another C library, do nothing.
    """
    _set_heap({_MMAP_THRESHOLD: _LARGEST_ON_HEAP, _TRIM_THRESHOLD: _NEVER}, _THRESHOLDS)


def share_heap() -> None:
    """Let glibc make no more heaps for new threads, unless the environment sets their number.

    By default a thread has a heap of its own: what it has freed is of no use to others, and fragments apart from the
    rest (docs/records/experiments.md). With another C library, do nothing.
    """
    _set_heap({_ARENA_MAX: 1}, _HEAPS)


def _set_heap(values: Mapping[int, int], variables: Sequence[str]) -> None:
    """Set parameters of glibc's `mallopt`, unless the environment has one of the variables for them."""
    if any(name in os.environ for name in (*variables, _TUNABLES)):
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        for parameter, value in values.items():
            library.mallopt(parameter, value)


def trim_heap() -> None:
    """Return free memory of the heap to the system; with another C library than glibc, do nothing.

    This takes up to a tenth of a second, and memory that is needed again must be allocated again.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def is_distributed() -> bool:
    """True if this process is one of several that torchrun started."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def is_main_process() -> bool:
    """True in the process that writes files and messages: rank 0 under torchrun, or a process started alone."""
    return not is_distributed() or os.environ.get("RANK", "0") == "0"
