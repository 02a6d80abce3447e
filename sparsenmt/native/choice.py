"""The choice between a compiled kernel and PyTorch's operators: whichever a measurement on this machine finds faster.

A kernel that is right may still be slow: compiled for other vectors than it was written for, it takes many times
PyTorch's time. So each class of problems (a kernel, and sizes that stand for a range of sizes) is measured when it is
first met, on made-up numbers, and the ratio is kept beside the library: all runs on a machine choose alike.
SPARSENMT_NATIVE=always uses every kernel that is right, without measuring.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

import torch

from sparsenmt.native import cache
from sparsenmt.native.build import SWITCH
from sparsenmt.native.instruction_sets import processor
from sparsenmt.storage.files import sha256_text

ALWAYS = "always"
_LENGTHS, _LONGEST = ((20, 14), (48, 30), (128, 80)), 256  # (longest of a class, its measured length)

Trial = tuple[Callable[[], object], Callable[[], object]]
"""A problem that is solved by the kernel, and by PyTorch."""

CLEARLY = 0.95  # of PyTorch's time, at most: closer to 1, noise would decide
AS_FAST = 1.05  # of PyTorch's time: where the kernel is wanted for its memory
_SECONDS, _MORE_SECONDS = 0.01, 0.06  # of a measurement; of a close one
_CLOSE = 0.8, 1.2
_LEAST, _MOST = 7, 60  # turns; with fewer, other programs decide
_DIGITS = 8  # of the hash of PyTorch's version and the processor


def usual_length(count: int) -> int:
    """The length that is measured for this number of tokens. There are four, so that few are measured."""
    return next((stands for most, stands in _LENGTHS if count <= most), _LONGEST)


_known: dict[str, dict[str, float]] = {}  # of this process: name of a record -> `Choice.ratios`

_alone = threading.RLock()
"""Held until a measurement is kept: several searches of this process may meet a class at the same time."""


class Choice:
    """The measured ratios of a library's kernels.

    Args:
        library: name of its file, which stands for the sources and the compiler.
    """

    def __init__(self, library: str) -> None:
        machine = sha256_text(f"{torch.__version__} {processor()}")[:_DIGITS]  # a wheel's library is used on many
        self._library = f"{library}-{machine}"
        self._ratios: dict[int, dict[str, float]] = {}  # by the number of threads

    def __deepcopy__(self, memo: object) -> Choice:
        """Return the same object: copies of a model share the library and its ratios."""
        return self

    @property
    def ratios(self) -> dict[str, float]:
        """The kernel's time over PyTorch's, by class, with this number of threads: those that are known so far."""
        threads = torch.get_num_threads()
        if threads not in self._ratios:
            self._ratios[threads] = _known[self._record(threads)] = kept_ratios(self._record(threads))
        return self._ratios[threads]

    def ratio(self, name: str, trial: Callable[[], Trial]) -> float:
        """The kernel's time over PyTorch's for a class; ``trial`` makes its problem, at the first call on a machine."""
        found = self.ratios.get(name)
        return self._measured(name, trial) if found is None else found

    def faster(self, name: str, trial: Callable[[], Trial]) -> bool:
        """Return True if the kernel is clearly faster than PyTorch, or SPARSENMT_NATIVE=always."""
        return os.environ.get(SWITCH) == ALWAYS or self.ratio(name, trial) < CLEARLY

    def _measured(self, name: str, trial: Callable[[], Trial]) -> float:
        threads = torch.get_num_threads()
        with _alone, torch.inference_mode():
            if name in self.ratios:  # another search of this process has measured it meanwhile
                return self.ratios[name]
            found = measure(*trial())
            record = self._record(threads)
            known = {name: found} | kept_ratios(record)  # one that another process has kept meanwhile is preferred
            self._ratios[threads] |= known
            cache.write_record(record, {"ratios": known})
            return self._ratios[threads][name]

    def _record(self, threads: int) -> str:
        return f"{self._library}-speed-{threads}.json"


def known_ratios() -> dict[str, dict[str, float]]:
    """The ratios that this process has read or measured: name of their record -> class -> ratio."""
    return {record: dict(ratios) for record, ratios in _known.items() if ratios}


def kept_ratios(record: str) -> dict[str, float]:
    """The ratios of a record in the cache; values of other types are ignored."""
    ratios = (cache.read_record(record) or {}).get("ratios")
    if not isinstance(ratios, dict):
        return {}
    return {str(name): ratio for name, ratio in ratios.items() if _is_ratio(ratio)}


def _is_ratio(found: object) -> bool:
    return isinstance(found, float) and 0 < found < math.inf


def measure(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """The seconds of the first over those of the second: the fastest of several turns, as disturbances only add."""
    ours(), theirs()
    best, began = [math.inf, math.inf], time.perf_counter()
    for turn in range(_MOST):
        for side, run in enumerate((ours, theirs)):
            start = time.perf_counter()
            run()
            best[side] = min(best[side], time.perf_counter() - start)
        ratio, taken = best[0] / best[1], time.perf_counter() - began
        close = _CLOSE[0] < ratio < _CLOSE[1]
        if turn + 1 >= _LEAST and taken > (_MORE_SECONDS if close else _SECONDS):
            break
    return ratio
