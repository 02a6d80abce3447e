"""A hash function of integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit values with a step of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
