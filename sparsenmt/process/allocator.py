"""The reuse of freed memory, and its return to the system, while a model is trained."""

from __future__ import annotations

import time

from sparsenmt.process.resident_memory import resident_bytes
from sparsenmt.process.runtime import keep_freed_memory, share_heap, trim_heap

_LIMITS = ((0, 0.0, 2.0), (20, 0.0, 1.1), (10, 20.0, 0.0), (100, 0.0, 0.0))
"""Updates and seconds since the last trim, and the growth of the resident size at which the heap is trimmed then: that
takes 0.1 s. Slow updates have no limit of growth: what an update needs is known late, and the limit would rise."""


class HeapTrimmer:
    """Keeps freed memory for the next updates; trims the heap when the process has grown, and at intervals.

    Batches of changing shapes fragment glibc's heap: without trimming, training in bf16 grows with every update, by
    about 20 MB with batches of 4,096 tokens and by far more with larger ones (docs/records/experiments.md). It begins
    by trimming: what an earlier run of this process has left, as in a sweep, is not needed.
    """

    def __init__(self) -> None:
        keep_freed_memory()
        share_heap()
        trim_heap()
        self._updates, self._since = 0, time.monotonic()
        self._needed = 0  # largest resident size after an update that followed a trim
        self._trimmed = True

    def trim(self) -> None:
        """Return free memory to the system, as after a validation, which leaves more than updates need."""
        trim_heap()
        self._updates, self._since, self._trimmed = 0, time.monotonic(), True

    def after_update(self) -> bool:
        """Trim the heap if it has grown too large or was not trimmed for long; return True if it was trimmed."""
        resident = resident_bytes()
        if resident is None:
            return False
        self._updates += 1
        if self._trimmed:
            self._needed, self._trimmed = max(self._needed, resident), False
        elif self._is_due(resident):
            self.trim()
        return self._trimmed

    def _is_due(self, resident: int) -> bool:
        seconds = time.monotonic() - self._since
        return any(
            self._updates >= updates and seconds >= least and resident > growth * self._needed
            for updates, least, growth in _LIMITS
        )
