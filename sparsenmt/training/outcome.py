"""What the validations of a run say: the best updates, how long there was no better one, whether the run is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sparsenmt.recipe.schema import AuxiliaryLoss, Training
from sparsenmt.training.schedules import end_of
from sparsenmt.training.state import Progress, Validated

_NONE: Mapping[str, AuxiliaryLoss] = MappingProxyType({})

LOWER_IS_BETTER = frozenset({"loss", "ter"})


def regular(progress: Progress, options: Training) -> list[Validated]:
    """The validations that a longer run has, too: all but one that only the end of this run brought about."""
    return [each for each in progress.validated if each.update % options.validation.every == 0]


def best_updates(
    validations: Sequence[Validated], metric: str, count: int = 1, losses: Mapping[str, AuxiliaryLoss] = _NONE
) -> list[int]:
    """Updates of the best validations, best first; of equal ones that of the lower loss, then the earlier.

    Where losses have a target, those come first that are within its tolerance, then the nearest: otherwise the best
    would be the earliest, whose gates are still open.
    """
    sign = 1.0 if metric in LOWER_IS_BETTER else -1.0

    def rank(validated: Validated) -> tuple[bool, float, float, float, int]:
        value = validated.values[metric]
        return math.isnan(value), _excess(validated, losses), sign * value, validated.values["loss"], validated.update

    ranked = sorted(validations, key=rank)
    return [each.update for each in ranked[:count]]


def _excess(validated: Validated, losses: Mapping[str, AuxiliaryLoss]) -> float:
    """How much farther from the targets than their tolerance the closed shares are."""
    return sum(
        max(abs(validated.values[f"{name}_closed"] - end_of(loss.target)) - loss.tolerance, 0.0)
        for name, loss in losses.items()
        if loss.target is not None
    )


def stale_validations(progress: Progress, metric: str, losses: Mapping[str, AuxiliaryLoss] = _NONE) -> int:
    """Validations since the best one."""
    updates = [each.update for each in progress.validated]
    best = best_updates(progress.validated, metric, losses=losses)
    return len(updates) - 1 - updates.index(best[0]) if updates else 0


def is_over(progress: Progress, options: Training, losses: Mapping[str, AuxiliaryLoss] = _NONE) -> bool:
    """Whether the run has reached one of the recipe's limits."""
    patience = options.validation.patience
    return (
        progress.update >= options.max_updates
        or (options.max_epochs is not None and progress.epoch >= options.max_epochs)
        or (patience is not None and stale_validations(progress, options.validation.metric, losses) >= patience)
    )
