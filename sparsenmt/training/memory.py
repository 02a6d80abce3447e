"""Memory that the C library keeps although nothing uses it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_STATM = Path("/proc/self/statm")
_GROWTH = 2.0


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

    It takes about a tenth of a second, and what is needed again has to be asked for again.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


def resident_bytes() -> int | None:
    """What this process has in memory; None where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class FreeMemory:
    """Gives free memory back when the process has become twice as large as updates need it.

    Batches of ever other shapes fragment glibc's heap: without this, training in bf16 grows with every update, by some
    20 MB with batches of 4,096 pieces and by far more with larger ones (docs/experiments.md).
    """

    def __init__(self) -> None:
        self._needed = 0  # the most that an update left after memory was given back
        self._fresh = True

    def after_update(self) -> bool:
        """Look, and give back if it is time; whether it was."""
        resident = resident_bytes()
        if resident is None:
            return False
        if self._fresh:
            self._needed, self._fresh = max(self._needed, resident), False
        elif resident > _GROWTH * self._needed:
            release_free_memory()
            self._fresh = True
        return self._fresh
