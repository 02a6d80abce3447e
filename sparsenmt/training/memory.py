"""Memory that the C library keeps although nothing uses it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`, where there is one."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        trim: Callable[[int], int] = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):  # another C library
        return None
    return trim


def release_free_memory() -> None:
    """Give free memory back to the system.

    Batches of ever other shapes fragment glibc's heap: without this, training in bf16 grows by some 20 MB an update,
    to several GB (docs/experiments.md). It takes about a tenth of a second.
    """
    trim = _trim()
    if trim is not None:
        trim(0)
