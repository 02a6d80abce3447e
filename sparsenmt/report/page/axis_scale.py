"""The scale of an axis: its ends, the values with ticks, and their places in a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class AxisScale:
    """A linear scale.

    Args:
        low, high: the values at its ends; low is less.
        first, last: the places of the two in the picture.
    """

    low: float
    high: float
    first: float
    last: float

    def place(self, value: float) -> float:
        """Return the place of a value, to a tenth of a pixel."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 1)

    def ticks(self, most: int) -> list[float]:
        """Return round values inside the scale at equal distances, ``most`` at most (2 or more)."""
        unit = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        for step in (unit * each for each in _STEPS):
            numbers = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
            if len(numbers) <= most:
                break
        return [float(f"{number * step:.12g}") for number in numbers]


def ends_of(values: Iterable[float]) -> tuple[float, float]:
    """Return ends around values, with a margin; (0, 1) without values."""
    known = list(values)
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if low == high:
        spare = abs(low) * 0.1 or 1.0
        return low - spare, high + spare
    spare = (high - low) * 0.04
    return low - spare, high + spare


def tick_text(value: float, *, percent: bool) -> str:
    """Return the text at a tick."""
    return f"{value * 100:,.6g}%" if percent else f"{value:,.6g}"
