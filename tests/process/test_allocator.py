"""Giving memory back is safe wherever it is called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sparsenmt
from sparsenmt.process import allocator, resident_memory, runtime
from sparsenmt.process.allocator import HeapTrimmer
from sparsenmt.process.runtime import RETURNING_KERNELS, keep_freed_memory, limit_kernel_caches, share_heap, trim_heap


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
    """Runs of one process, as in a sweep, would each be allowed more than the one before had reached."""
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


@pytest.mark.parametrize(("later", "expected"), [(100, [100, 200, 300]), (109, [100, 200, 300]), (111, [20, 120, 220])])
def test_it_is_given_back_in_time(monkeypatch: pytest.MonkeyPatch, later: int, expected: list[int]) -> None:
    """Freed blocks of which some part is in use add up slowly: not every update may trim, but some must."""
    sizes = iter([100] + 400 * [later])  # an update needs what it needs: after the first trim, the later size
    monkeypatch.setattr(allocator, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(allocator, "trim_heap", lambda: None)
    free = HeapTrimmer()
    assert [i for i in range(1, 301) if free.after_update()] == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, [100]), (3.0, [*range(10, 101, 10)])])
def test_slow_updates_are_trimmed_more_often(
    monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    """A trim takes a tenth of a second: where 10 updates take long, they are worth one whatever has grown."""
    times = iter(seconds * i for i in range(1000))
    sizes = iter([100] + 400 * [105])
    monkeypatch.setattr(allocator.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(allocator, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(allocator, "trim_heap", lambda: None)
    free = HeapTrimmer()
    assert [i for i in range(1, 101) if free.after_update()] == expected


_FAULTS = """
import resource, sys, threading
sys.path.insert(0, {root!r})
from sparsenmt.process.runtime import keep_freed_memory, share_heap
keep_freed_memory()
share_heap()
import ctypes
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    blocks = [libc.malloc(8 << 20) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, 8 << 20)
    for block in blocks:
        libc.free(block)
first = threading.Thread(target=use)
first.start()
first.join()
before = faults()
for _ in range(5):
    use()
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets thresholds of glibc")
@pytest.mark.parametrize("variable", ["", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX"])
def test_freed_blocks_are_used_again(variable: str) -> None:
    """Pages of blocks that a thread freed are not asked for again, unless the environment has settings of the heap."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    if variable:
        environment[variable] = "131072"
    root = str(Path(sparsenmt.__file__).parents[1])
    program = [sys.executable, "-c", _FAULTS.format(root=root)]
    faults = int(subprocess.run(program, env=environment, capture_output=True, check=True, text=True).stdout)
    if variable:
        assert faults > 1_000, "of 4 kB, or tens of thousands"
    else:
        assert faults < 1_000


def test_with_another_c_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def missing(name: str) -> None:
        asked.append(name)
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    for function in (keep_freed_memory, share_heap, trim_heap):
        getattr(function, "cache_clear", lambda: None)()
        assert function() is None
    assert asked


def test_where_the_system_does_not_say_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resident_memory, "_STATUS", tmp_path / "none")
    assert resident_memory.resident_bytes() is None and not HeapTrimmer().after_update()


def test_kernels_are_limited_again_but_not_where_the_environment_sets_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    for name in names:
        monkeypatch.setenv(name, "7")
    del os.environ[names[1]]
    monkeypatch.setattr(runtime, "_limits", {})
    limit_kernel_caches()
    assert [os.environ[name] for name in names] == ["7", "16"]
    limit_kernel_caches(RETURNING_KERNELS)
    assert [os.environ[name] for name in names] == ["7", "64"]
