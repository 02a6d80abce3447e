"""The validations of a run: its best updates, the validations since the best one, the end of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sparsenmt.metric import lower_is_better
from sparsenmt.recipe.auxiliary_loss import AuxiliaryLoss
from sparsenmt.recipe.schema import Training
from sparsenmt.training.schedules import final_value
from sparsenmt.training.state import Progress, ValidationResult


def scheduled_validations(progress: Progress, options: Training) -> list[ValidationResult]:
    """The validations at multiples of ``validation.every``: all but an additional one at the end of the run."""
    return [each for each in progress.validated if each.update % options.validation.every == 0]


def best_updates(
    validations: Sequence[ValidationResult], metric: str, count: int, losses: Mapping[str, AuxiliaryLoss]
) -> list[int]:
    """Updates of the best validations, best first, by their `rank`; ties go to the earlier update."""
    ranked = sorted(validations, key=lambda each: (rank(each.values, metric, losses), each.update))
    return [each.update for each in ranked[:count]]


def rank(
    values: Mapping[str, float], metric: str, losses: Mapping[str, AuxiliaryLoss]
) -> tuple[bool, float, float, float]:
    """A key that sorts the values of validations, the best ones first; ties go to the lower loss.

    If losses have a target, validations within its tolerance come first, then those nearest to it: otherwise the
    best one would be an early one, whose gates are still open.
    """
    sign = 1.0 if lower_is_better(metric) else -1.0
    outside = sum(
        max(abs(values[f"{name}_closed"] - final_value(loss.target)) - loss.tolerance, 0.0)
        for name, loss in losses.items()
        if loss.target is not None
    )
    return math.isnan(values[metric]), outside, sign * values[metric], values["loss"]


def losses_without_target(losses: Mapping[str, AuxiliaryLoss]) -> list[str]:
    """Names of the auxiliary losses that have a weight, and no target by which validations could be compared."""
    return [
        name
        for name, loss in losses.items()
        if loss.target is None and (loss.weight is None or final_value(loss.weight) != 0)
    ]


def stale_validations(progress: Progress, metric: str, losses: Mapping[str, AuxiliaryLoss]) -> int:
    """The number of validations since the best one."""
    updates = [each.update for each in progress.validated]
    best = best_updates(progress.validated, metric, 1, losses)
    return len(updates) - 1 - updates.index(best[0]) if updates else 0


def limit_reached(progress: Progress, options: Training, losses: Mapping[str, AuxiliaryLoss]) -> bool:
    """True if the run has reached one of the recipe's limits: updates, epochs or patience."""
    patience = options.validation.patience
    return (
        progress.update >= options.max_updates
        or (options.max_epochs is not None and progress.epoch >= options.max_epochs)
        or (patience is not None and stale_validations(progress, options.validation.metric, losses) >= patience)
    )
