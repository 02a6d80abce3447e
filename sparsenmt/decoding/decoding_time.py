"""The time that decoding takes: systems translate the same lines in turns, and the fastest turn of each counts.

In turns all systems see the machine at its best and at its worst; the fastest turn is the one that other processes
disturbed least. What lies within the spread of the turns is no difference of the systems.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Generic, Literal, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

WARM_UP_LINES = 4
"""The first translations are slower than all others: memory is allocated, kernels are loaded."""


@dataclass(frozen=True)
class DecodingTime(Generic[T]):
    """The turns of a system.

    Args:
        turns: wall-clock seconds of every turn.
        result: the return value of the system's function in its fastest turn.
    """

    turns: tuple[float, ...]
    result: T

    @property
    def seconds(self) -> float:
        """The fastest turn."""
        return min(self.turns)

    @property
    def median(self) -> float:
        """The median of the turns."""
        return median(self.turns)

    @property
    def spread(self) -> float | None:
        """The excess time of the slowest turn over the fastest, as a share of it; None for one turn."""
        return max(self.turns) / self.seconds - 1 if len(self.turns) > 1 else None

    def per(self, units: int) -> DecodingTime[T]:
        """Return the times by unit, such as tokens."""
        return replace(self, turns=tuple(seconds / units for seconds in self.turns))

    def against(self, other: DecodingTime[T]) -> Literal["equal", "faster", "slower"] | None:
        """Compare with another system: equal where the turns of both overlap; None if one of them has one turn."""
        if min(len(self.turns), len(other.turns)) < 2:
            return None
        if max(self.turns) < other.seconds:
            return "faster"
        return "slower" if self.seconds > max(other.turns) else "equal"


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
            before = times.get(name, DecodingTime((), result))
            kept = result if all(seconds < turn for turn in before.turns) else before.result
            times[name] = DecodingTime((*before.turns, seconds), kept)
            if advance is not None:
                advance(1)
    return times
