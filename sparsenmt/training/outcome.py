"""What the validations of a run say: the best updates, how long there was no better one, whether the run is over."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparsenmt.recipe.schema import Training
from sparsenmt.training.state import Progress, Validated

LOWER_IS_BETTER = frozenset({"loss", "ter"})


def regular(progress: Progress, options: Training) -> list[Validated]:
    """The validations that a longer run has, too: all but one that only the end of this run brought about."""
    return [each for each in progress.validated if each.update % options.validation.every == 0]


def best_updates(validations: Sequence[Validated], metric: str, count: int = 1) -> list[int]:
    """Updates of the best validations, best first; of equal ones that of the lower loss, then the earlier."""
    sign = 1.0 if metric in LOWER_IS_BETTER else -1.0

    def rank(validated: Validated) -> tuple[bool, float, float, int]:
        value = validated.values[metric]
        return math.isnan(value), sign * value, validated.values["loss"], validated.update

    ranked = sorted(validations, key=rank)
    return [each.update for each in ranked[:count]]


def stale_validations(progress: Progress, metric: str) -> int:
    """Validations since the best one."""
    updates = [each.update for each in progress.validated]
    return len(updates) - 1 - updates.index(best_updates(progress.validated, metric)[0]) if updates else 0


def is_over(progress: Progress, options: Training) -> bool:
    """Whether the run has reached one of the recipe's limits."""
    patience = options.validation.patience
    return (
        progress.update >= options.max_updates
        or (options.max_epochs is not None and progress.epoch >= options.max_epochs)
        or (patience is not None and stale_validations(progress, options.validation.metric) >= patience)
    )
