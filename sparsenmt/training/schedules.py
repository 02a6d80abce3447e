"""Values that change over training: the learning rate, and the weights and targets of auxiliary losses.

The weight of an auxiliary loss is constant, scheduled, or controlled so that a target share of gates closes. A fixed
weight is hard to choose: one closes no gate, a slightly larger one closes all, and the decoder needs longer to adapt
than the gates need to close. The controller solves a constrained optimisation problem, the best likelihood subject to
(share closed) >= target: the weight is the Lagrange multiplier of the constraint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sparsenmt.recipe.auxiliary_loss import AuxiliaryLoss, Ramp
from sparsenmt.recipe.schema import Training
from sparsenmt.training.gradients import BatchResult, UpdateTotals
from sparsenmt.training.state import Multiplier, Progress


def learning_rate(update: int, options: Training) -> float:
    """The learning rate of an update, numbered from 1: linear warmup, then the schedule.

    ``inverse_sqrt`` is that of Vaswani et al. 2017, 5.3, given its peak. ``linear`` and ``cosine`` (Loshchilov and
    Hutter 2017, Eq. 5, without restarts) reach 0 after the last update.
    """
    peak, warmup, last = options.learning_rate, options.warmup_updates, options.max_updates
    if update < warmup:
        return peak * update / warmup
    if options.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / update)
    if options.schedule == "linear":
        return peak * max(last + 1 - update, 0) / max(last + 1 - warmup, 1)
    if options.schedule == "cosine":
        left = max(last + 1 - update, 0) / max(last + 1 - warmup, 1)
        return peak * (1 - math.cos(math.pi * left)) / 2
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


def loss_weights(
    losses: Mapping[str, AuxiliaryLoss], multipliers: Mapping[str, Multiplier], update: int
) -> dict[str, float]:
    """The weight of every loss in the update that follows ``update`` updates."""
    weights = {}
    for name, loss in losses.items():
        if loss.target is None:
            weights[name] = 1.0 if loss.weight is None else value_at(loss.weight, update)
        else:
            weights[name] = multipliers[name].weight if name in multipliers else 0.0
    return weights


def next_multiplier(multiplier: Multiplier, loss: AuxiliaryLoss, update: int, closed: float) -> Multiplier:
    """The multiplier after an update in which ``closed`` is the share of closed gates, as evaluated.

    A PID controller: the smoothed distance from the target (P), its sum over the updates (I), and a brake in
    proportion to the speed of the share (D), because closing gates have momentum. The sum stays between 0 and
    `max_weight`, against integral windup while the gates lag behind. Beyond the target it falls faster than it rose:
    closed gates stay closed under much less weight than it took to close them. The weight may be negative: a gate far
    below its threshold gets no gradient from the likelihood, and opens again only if opening is rewarded.
    """
    assert loss.target is not None
    keep = loss.smoothing
    smoothed = closed if multiplier.closed is None else keep * multiplier.closed + (1 - keep) * closed
    distance = value_at(loss.target, update) - smoothed
    gain = loss.integral * (distance if distance > 0 else loss.release * distance)
    integral = min(max(multiplier.integral + gain, 0.0), loss.max_weight)
    speed = 0.0 if multiplier.closed is None else smoothed - multiplier.closed
    weight = integral + loss.proportional * distance - loss.damping * speed
    weight = min(max(weight, -loss.max_weight), loss.max_weight)
    return Multiplier(weight=weight, integral=integral, closed=smoothed)


def update_multipliers(
    losses: Mapping[str, AuxiliaryLoss], progress: Progress, result: BatchResult, totals: UpdateTotals
) -> dict[str, float]:
    """Update the multipliers of losses with a target after an update.

    Returns:
        for the log, of every loss: its weight in this update; of losses of gates, and of filters without a loss: the
        shares of gates that are 0 and that are strictly between 0 and 1 in evaluation, and the number of open gates in
        a sentence.
    """
    values = {}
    weights = loss_weights(losses, progress.multipliers, progress.update - 1)
    for name in (*losses, *sorted(result.closed.keys() - losses.keys())):
        loss = losses.get(name)
        if loss is not None:
            values[f"{name}_weight"] = weights[name]
        if name not in result.closed:
            continue
        values[f"{name}_closed"] = closed = result.closed[name]
        values[f"{name}_partial"] = result.partial[name]
        values[f"{name}_open_per_sentence"] = (1 - closed) * totals.source_tokens / totals.sentences
        if loss is not None and loss.target is not None:
            before = progress.multipliers.get(name, Multiplier())
            progress.multipliers[name] = next_multiplier(before, loss, progress.update, closed)
    return values


class OpenGates:
    """The losses whose gates are all 1 in evaluation, update after update, although a target wants some closed.

    A gate far above its threshold has no gradient: neither the penalty nor the controller reaches it.
    """

    PATIENCE = 50
    """Updates after which a loss is named."""

    def __init__(self) -> None:
        self._updates: dict[str, int] = {}  # of each loss, one after the other

    def notice(self, losses: Mapping[str, AuxiliaryLoss], values: Mapping[str, float], update: int) -> list[str]:
        """Count an update; return the losses to be named now, each once.

        Args:
            values: as from `update_multipliers`.
        """
        named = []
        for name, loss in losses.items():
            done = self._updates.get(name, 0)
            if loss.target is None or f"{name}_closed" not in values or done == self.PATIENCE:
                continue
            stuck = values[f"{name}_closed"] == 0 == values[f"{name}_partial"]
            wanted = value_at(loss.target, update) > loss.tolerance
            self._updates[name] = done + 1 if stuck and wanted else 0
            if self._updates[name] == self.PATIENCE:
                named.append(name)
        return named


def closed_shares(losses: Mapping[str, AuxiliaryLoss], values: Mapping[str, float], update: int) -> list[str]:
    """Return the share of closed gates of every loss of gates, and filter without one, as text with its present target.

    Args:
        values: as from `update_multipliers`.
    """
    shown, gates = [], [key.removesuffix("_partial") for key in values if key.endswith("_partial")]
    names = dict.fromkeys((*losses, *gates))
    for name in names:
        if f"{name}_closed" not in values:
            continue
        loss = losses.get(name)
        prefix = f"{name} " if len(names) > 1 else ""
        target = "" if loss is None or loss.target is None else f" (target {value_at(loss.target, update):.0%})"
        shown.append(f"{prefix}closed {values[f'{name}_closed']:.1%}{target}")
    return shown
