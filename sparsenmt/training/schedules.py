"""Schedules over updates: of the learning rate, and of the weights and targets of auxiliary losses."""

from __future__ import annotations

import math

from sparsenmt.recipe.schema import Ramp, Training


def learning_rate(update: int, options: Training) -> float:
    """The learning rate of an update, numbered from 1: linear warmup, then the schedule.

    ``inverse_sqrt`` is that of Vaswani et al. 2017, 5.3, given its peak. ``linear`` reaches 0 after the last update.
    """
    peak, warmup, last = options.learning_rate, options.warmup_updates, options.max_updates
    if update < warmup:
        return peak * update / warmup
    if options.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / update)
    if options.schedule == "linear":
        return peak * max(last + 1 - update, 0) / max(last + 1 - warmup, 1)
    return peak


def value_at(value: float | Ramp, update: int) -> float:
    """A constant, or the value of a linear ramp after ``update`` updates; the ramp stays at its end."""
    if not isinstance(value, Ramp):
        return value
    done = min(max(update - value.after, 0) / value.steps, 1.0)
    return value.from_ + (value.to - value.from_) * done


def final_value(value: float | Ramp) -> float:
    """The value at the end of a schedule."""
    return value.to if isinstance(value, Ramp) else value
