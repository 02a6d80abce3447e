"""The resident memory of this process, as Linux counts it; elsewhere it is not known."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_bytes() -> int | None:
    """Return the bytes that are resident now; None: not known."""
    return _status("VmRSS")


def peak_resident_bytes() -> int | None:
    """Return the most bytes that were resident since `forget_peak`, or the start of the process; None: not known."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let `peak_resident_bytes` begin anew, where the system allows it."""
    with suppress(OSError):
        _RESET.write_bytes(b"5")


def _status(key: str) -> int | None:
    """Return the value of a key of the status in bytes."""
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_bytes().decode().split("\n"):
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return None
