"""Weights of auxiliary losses: constant, on a schedule, or driven so that a target share is closed and stays closed.

A fixed weight is hard to choose: one closes nothing, a slightly larger one closes all, and rerouting what the decoder
needs takes longer than closing gates. The controller is that of a constrained optimisation problem, the best likelihood
subject to (share closed) >= target: the weight is the multiplier of the constraint.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsenmt.recipe.schema import AuxiliaryLoss
from sparsenmt.training.gradients import BatchResult, Totals
from sparsenmt.training.schedules import at
from sparsenmt.training.state import Multiplier, Progress


def current_weights(
    losses: Mapping[str, AuxiliaryLoss], multipliers: Mapping[str, Multiplier], update: int
) -> dict[str, float]:
    """The weight of every loss in the update after ``update``."""
    weights = {}
    for name, loss in losses.items():
        if loss.target is None:
            weights[name] = 1.0 if loss.weight is None else at(loss.weight, update)
        else:
            weights[name] = multipliers[name].weight if name in multipliers else 0.0
    return weights


def advance(multiplier: Multiplier, loss: AuxiliaryLoss, update: int, closed: float) -> Multiplier:
    """The multiplier after an update whose batches had this share of gates closed, by the gates of evaluation.

    The (smoothed) distance from the target, its sum over the updates, and a brake in proportion to the speed at which
    the share moves, as closing gates have momentum. The sum stays between 0 and `max_weight`, so that nothing winds up
    while the gates lag behind; beyond the target it falls faster than it rose, as gates that have closed stay closed
    under much less weight than it took to close them. The weight may be negative: a gate far below its threshold gets
    no gradient from the likelihood, so that what has closed too much opens again only if opening pays.
    """
    assert loss.target is not None
    keep = loss.smoothing
    smoothed = closed if multiplier.closed is None else keep * multiplier.closed + (1 - keep) * closed
    distance = at(loss.target, update) - smoothed
    gain = loss.integral * (distance if distance > 0 else loss.release * distance)
    integral = min(max(multiplier.integral + gain, 0.0), loss.max_weight)
    speed = 0.0 if multiplier.closed is None else smoothed - multiplier.closed
    weight = integral + loss.proportional * distance - loss.damping * speed
    weight = min(max(weight, -loss.max_weight), loss.max_weight)
    return Multiplier(weight=weight, integral=integral, closed=smoothed)


def steer(
    losses: Mapping[str, AuxiliaryLoss], progress: Progress, result: BatchResult, totals: Totals
) -> dict[str, float]:
    """After an update: move the weights of losses that have a target.

    Returns:
        what the log says of every loss's filters: the weight that it had, the share of gates that are 0 in evaluation,
        of those that are neither 0 nor 1, and how many are open in a sentence.
    """
    values = {}
    weights = current_weights(losses, progress.multipliers, progress.update - 1)
    for name, loss in losses.items():
        values[f"{name}_weight"] = weights[name]
        values[f"{name}_closed"] = closed = result.closed[name]
        values[f"{name}_partial"] = result.partial[name]
        values[f"{name}_open_per_sentence"] = (1 - closed) * totals.source_tokens / totals.sentences
        if loss.target is not None:
            before = progress.multipliers.get(name, Multiplier())
            progress.multipliers[name] = advance(before, loss, progress.update, closed)
    return values
