"""Giving memory back is safe wherever it is called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from sparsenmt.runtime import trim_heap
from sparsenmt.training import allocator
from sparsenmt.training.allocator import HeapTrimmer


def resident() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * 4096


def test_it_does_nothing_to_what_is_in_use() -> None:
    tensor = torch.arange(10_000)
    trim_heap()
    assert int(tensor.sum()) == 49_995_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures with /proc")
def test_free_memory_between_used_memory_goes_back() -> None:
    # Blocks below the size at which the C library maps memory of its own; every second one stays in use.
    blocks = [torch.ones(16_000) for _ in range(2_000)]
    full = resident()
    kept = blocks[::2]
    del blocks
    trim_heap()
    assert full - resident() > 30_000_000  # of the 64 MB that are free
    assert all(float(block[0]) == 1.0 for block in kept)


def test_it_is_given_back_when_the_process_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100, 150, 199, 201, 120, 230, 241, 90, 239, 241])
    released: list[int] = []
    monkeypatch.setattr(allocator, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(allocator, "trim_heap", lambda: released.append(1))
    free = HeapTrimmer()
    # What an update needs is measured after memory went back, and never shrinks: 100, then 120, then 120 again.
    assert [free.after_update() for _ in range(10)] == [False] * 3 + [True] + [False] * 2 + [True] + [False] * 2 + [
        True
    ]
    assert len(released) == 4, "the first before all updates"


def test_what_an_earlier_run_left_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one process, as in a sweep, would each be allowed twice what the one before had reached."""
    size = [100]
    monkeypatch.setattr(allocator, "resident_bytes", lambda: size[0])
    monkeypatch.setattr(allocator, "trim_heap", lambda: size.__setitem__(0, 100))
    reached = []
    for _ in range(4):
        free, most = HeapTrimmer(), 0
        for _ in range(50):
            size[0] += 10
            most = max(most, size[0])
            free.after_update()
        reached.append(most)
    assert max(reached) == reached[0] == 230


def test_where_the_system_does_not_say_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(allocator, "_STATM", tmp_path / "none")
    assert allocator.resident_bytes() is None and not HeapTrimmer().after_update()
