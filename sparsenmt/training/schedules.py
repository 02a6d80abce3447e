"""Values that change with the updates: the learning rate and the weights of auxiliary losses."""

from __future__ import annotations

import math
from typing import Literal

from sparsenmt.recipe.schema import Ramp

Schedule = Literal["inverse_sqrt", "linear", "constant"]


def learning_rate(update: int, *, peak: float, schedule: Schedule, warmup: int, last: int) -> float:
    """The rate of the update numbered ``update`` (from 1): a linear rise over ``warmup`` updates, then the schedule.

    ``inverse_sqrt`` is that of Vaswani et al. 2017, 5.3, written with its peak. ``linear`` reaches 0 after ``last``.
    """
    if update < warmup:
        return peak * update / warmup
    if schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / update)
    if schedule == "linear":
        return peak * max(last + 1 - update, 0) / max(last + 1 - warmup, 1)
    return peak


def at(value: float | Ramp, update: int) -> float:
    """A number; or a schedule's value after so many updates: it goes linearly from one end to the other, and stays."""
    if not isinstance(value, Ramp):
        return value
    done = min(max(update - value.after, 0) / value.steps, 1.0)
    return value.from_ + (value.to - value.from_) * done


def end_of(value: float | Ramp) -> float:
    """Where a schedule leads."""
    return value.to if isinstance(value, Ramp) else value
