"""The time that decoding takes: systems translate the same lines in turns, and the fastest turn of each counts.

In turns all systems see the machine at its best and at its worst; the fastest turn is the one that other processes
disturbed least.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

WARM_UP_LINES = 4
"""The first translations are slower than all others: memory is allocated, kernels are loaded."""


@dataclass(frozen=True)
class DecodingTime(Generic[T]):
    """The fastest turn of a system.

    Args:
        seconds: wall-clock time.
        result: the return value of the system's function.
    """

    seconds: float
    result: T


def time_decoding(
    systems: Callable[[], Iterable[tuple[K, Callable[[Sequence[str]], T]]]],
    lines: Sequence[str],
    *,
    rounds: int = 1,
    warm_up: int = WARM_UP_LINES,
    advance: Callable[[int], object] | None = None,
) -> dict[K, DecodingTime[T]]:
    """Time several systems on the same lines.

    Args:
        systems: called in each round; yields the name of each system and a function that translates lines, for example
            ``partial(translate_texts, bundle, options=options)``. A generator may open each model when its turn comes:
            this is not timed, and no reference to an earlier model is kept.
        rounds: turns of each system.
        warm_up: lines that each system translates before the clock starts, in every turn.
        advance: told 1 after every turn.
    """
    times: dict[K, DecodingTime[T]] = {}
    for _ in range(rounds):
        for name, translate in systems():
            if warm_up:
                translate(lines[:warm_up])
            began = time.perf_counter()
            result = translate(lines)
            seconds = time.perf_counter() - began
            del translate  # frees the model before the next one is opened
            if name not in times or seconds < times[name].seconds:
                times[name] = DecodingTime(seconds, result)
            if advance is not None:
                advance(1)
    return times
