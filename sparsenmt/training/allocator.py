"""The reuse of freed memory, and its return to the system, while a model is trained."""

from __future__ import annotations

import os
from pathlib import Path

from sparsenmt.runtime import keep_freed_memory, trim_heap

_STATM = Path("/proc/self/statm")
_GROWTH_LIMIT = 2.0  # of the resident size, before the heap is trimmed
_UPDATES = 100  # after which it is trimmed anyway


def resident_bytes() -> int | None:
    """Resident memory of this process in bytes; None if the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class HeapTrimmer:
    """Keeps freed memory for the next updates; trims the heap every 100 updates, and when the process has doubled.

    Batches of changing shapes fragment glibc's heap: without trimming, training in bf16 grows with every update, by
    about 20 MB with batches of 4,096 tokens and by far more with larger ones (docs/experiments.md). It begins by
    trimming: what an earlier run of this process has left, as in a sweep, is not needed.
    """

    def __init__(self) -> None:
        keep_freed_memory()
        trim_heap()
        self._updates = 0
        self._needed = 0  # largest resident size after an update that followed a trim
        self._trimmed = True

    def trim(self) -> None:
        """Return what a validation has left: memory that updates would not need all of."""
        trim_heap()
        self._updates, self._trimmed = 0, True

    def after_update(self) -> bool:
        """Trim the heap if it has grown too large or was not trimmed for long; return True if it was trimmed."""
        resident = resident_bytes()
        if resident is None:
            return False
        self._updates += 1
        if self._trimmed:
            self._needed, self._trimmed = max(self._needed, resident), False
        elif resident > _GROWTH_LIMIT * self._needed or self._updates >= _UPDATES:
            self.trim()
        return self._trimmed
