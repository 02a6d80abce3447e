"""Which validation of a run is the best."""

from __future__ import annotations

from sparsenmt.recipe.schema import AuxiliaryLoss, Training
from sparsenmt.training.state import Progress, ValidationResult
from sparsenmt.training.validation import best_updates, limit_reached, stale_validations


def validated(*rows: tuple[int, float, float]) -> list[ValidationResult]:
    """update, BLEU, share closed."""
    return [ValidationResult(update, {"loss": 1.0, "bleu": bleu, "l0_closed": closed}) for update, bleu, closed in rows]


def test_without_a_target_the_best_value_is_the_best() -> None:
    rows = validated((1, 30.0, 0.1), (2, 35.0, 0.2), (3, 33.0, 0.5))
    assert best_updates(rows, "bleu", 3, {}) == [2, 3, 1]
    assert best_updates(rows, "bleu", 1, {"l0": AuxiliaryLoss(weight=0.3)}) == [2]


def test_with_a_target_the_best_is_among_those_that_have_reached_it() -> None:
    """Otherwise it would be the earliest and densest one; where none has reached it, the nearest is the best."""
    rows = validated((1, 36.0, 0.1), (2, 35.0, 0.49), (3, 33.0, 0.505), (4, 35.5, 0.53))
    losses = {"l0": AuxiliaryLoss.model_validate({"target": {"from": 0.0, "to": 0.5, "steps": 9}, "tolerance": 0.02})}
    assert best_updates(rows, "bleu", 4, losses) == [2, 3, 4, 1]
    assert best_updates(rows[:1], "bleu", 1, losses) == [1]
    assert best_updates([*rows[:1], rows[3]], "bleu", 2, losses) == [4, 1]


def test_patience_counts_nearing_the_target_as_better() -> None:
    losses = {"l0": AuxiliaryLoss(target=0.5)}
    rows = validated((1, 36.0, 0.1), (2, 35.0, 0.3), (3, 34.0, 0.49), (4, 33.0, 0.5))
    progress = Progress(update=4, validated=rows)
    assert stale_validations(progress, "bleu", {}) == 3
    assert stale_validations(progress, "bleu", losses) == 1
    options = Training.model_validate({"validation": {"metric": "bleu", "patience": 2}})
    assert limit_reached(progress, options, {}) and not limit_reached(progress, options, losses)
