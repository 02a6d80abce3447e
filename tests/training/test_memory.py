"""Giving memory back is safe wherever it is called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from sparsenmt.training.memory import release_free_memory


def resident() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * 4096


def test_it_does_nothing_to_what_is_in_use() -> None:
    tensor = torch.arange(10_000)
    release_free_memory()
    assert int(tensor.sum()) == 49_995_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures with /proc")
def test_free_memory_between_used_memory_goes_back() -> None:
    # Blocks below the size at which the C library maps memory of its own; every second one stays in use.
    blocks = [torch.ones(16_000) for _ in range(2_000)]
    full = resident()
    kept = blocks[::2]
    del blocks
    release_free_memory()
    assert full - resident() > 30_000_000  # of the 64 MB that are free
    assert all(float(block[0]) == 1.0 for block in kept)
