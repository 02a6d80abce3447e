"""The choice among means of checkpoints, with weights of one number and validations that are computed from it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from sparsenmt.recipe.load import load_resolved
from sparsenmt.recipe.schema import Recipe
from sparsenmt.sparsity.registry import methods
from sparsenmt.training.checkpoints import Checkpoint, find_checkpoints, write_checkpoint
from sparsenmt.training.state import Progress, ValidationResult
from sparsenmt.training.validation import losses_without_target, rank
from sparsenmt.workflows.training.checkpoint_choice import CheckpointChoice, choose, mean_sizes


def recipe(metric: str = "loss", losses: Mapping[str, object] | None = None) -> Recipe:
    corpus = {"source": "text.en", "target": "text.de"}
    data = {"directory": "prepared", "train": [corpus], "dev": corpus}
    training = {"validation": {"metric": metric}}
    mapping = {"name": "x", "directory": "x", "data": data, "training": training}
    if losses:
        mapping |= {"losses": dict(losses), "model": {"memory": [{"name": "l0drop"}]}}
    return load_resolved(mapping, methods())


def checkpoints(folder: Path, weights: Sequence[float]) -> list[Checkpoint]:
    """Checkpoints after 10, 20, ... updates, of one weight."""
    for number, weight in enumerate(weights, start=1):
        tensors = {"x": torch.tensor([weight])}
        write_checkpoint(folder, Progress(update=10 * number), weights=tensors, optimizer={}, random={})
    return find_checkpoints(folder)


@dataclass
class Valley:
    """A validation that is best where the weight is 0."""

    seen: list[float] = field(default_factory=list)

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> dict[str, float]:
        value = float(weights["x"])
        self.seen.append(value)
        return {"loss": value**2, "bleu": 40 - abs(value), "l0_closed": 0.5 + value / 100}

    def of(self, found: Sequence[Checkpoint]) -> list[ValidationResult]:
        """The validations of a run with these checkpoints."""
        results = [ValidationResult(each.update, self(each.weights())) for each in found]
        self.seen.clear()
        return results


def choice(folder: Path, weights: Sequence[float], sizes: Sequence[int], of: Recipe) -> tuple[CheckpointChoice, Valley]:
    valley, found = Valley(), checkpoints(folder, weights)
    return choose(found, sizes, valley.of(found), of, valley), valley


@pytest.mark.parametrize(
    ("last", "sizes"),
    [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8]), (10, [1, 2, 4, 8, 10])],
)
def test_the_numbers_that_are_tried(last: int, sizes: list[int]) -> None:
    assert mean_sizes(last) == sizes


@pytest.mark.parametrize(
    ("weights", "taken"),
    [
        ([9, 9, 3, 1], [40]),  # early ones spoil every mean
        ([9, 9, -1, 1], [30, 40]),
        ([-4, 4, -2, 2.5], [10, 20, 30, 40]),  # of all: 0.125; of two: 0.25
        ([0.01, 9, 8, 7], [10]),  # the best single one is early, and not in a mean of few
        ([3, 3, 3, 3], [10]),  # alike: one checkpoint, the first
    ],
)
@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_the_best_on_the_validation_text_is_taken(
    tmp_path: Path, metric: str, weights: list[float], taken: list[int]
) -> None:
    found, valley = choice(tmp_path, weights, [1, 2, 4], recipe(metric))
    assert found.taken.updates == taken
    assert valley.seen == pytest.approx([sum(weights[2:]) / 2, sum(weights) / 4]), "single ones are known already"


def test_it_is_never_worse_than_the_best_single_checkpoint(tmp_path: Path) -> None:
    draw, means, cases = random.Random(3), 0, 40
    pool, valley = checkpoints(tmp_path, [draw.gauss(0, 3) for _ in range(10)]), Valley()
    for _ in range(cases):
        found = draw.sample(pool, draw.randint(1, 6))  # in any order: only the best must be found
        of = recipe(draw.choice(["loss", "bleu"]), {"l0": {"target": draw.choice([0.48, 0.5])}})
        result = choose(found, mean_sizes(len(found)), valley.of(found), of, valley)
        ranks = [rank(each.values, of.training.validation.metric, of.losses) for each in valley.of(found)]
        taken = rank(result.taken.values, of.training.validation.metric, of.losses)
        assert taken <= min(ranks)
        means += len(result.taken.updates) > 1
    assert cases / 5 < means < cases * 4 / 5, "draw other weights: both must occur"


def test_a_target_comes_before_quality(tmp_path: Path) -> None:
    """Closed is 0.5 + x / 100: the best quality, at x = 0, misses the target of 0.6 by more than its tolerance."""
    found, _ = choice(tmp_path, [0, 20, 7, 9.0], [1, 2, 4], recipe("bleu", {"l0": {"target": 0.6}}))
    assert found.taken.updates == [40]
    found, _ = choice(tmp_path / "mean", [-19, 16, 1, 20.0], [1, 2, 4], recipe("bleu", {"l0": {"target": 0.6}}))
    assert found.taken.updates == [30, 40] and found.describe() == (
        "the mean of 2 checkpoints, updates 30, 40: the best on the validation text, bleu 29.500, l0_closed 0.605 "
        "(update 20: bleu 24.000, l0_closed 0.660; update 40: bleu 20.000, l0_closed 0.700; "
        "last 4: bleu 35.500, l0_closed 0.545)"
    )


@pytest.mark.parametrize(
    ("loss", "free"),
    [
        ({"weight": 0.3}, ["l0"]),
        ({}, ["l0"]),  # a weight of 1
        ({"weight": {"from": 0, "to": 0.3, "steps": 5}}, ["l0"]),
        ({"weight": 0}, []),
        ({"target": 0.5}, []),
    ],
)
def test_losses_that_validation_does_not_see(loss: Mapping[str, object], free: list[str]) -> None:
    assert losses_without_target(recipe(losses={"l0": loss}).losses) == free


def test_a_validation_without_a_value_is_not_taken(tmp_path: Path) -> None:
    found = checkpoints(tmp_path, [1, 2])
    validated = [ValidationResult(20, {"loss": 3.0})]
    result = choose(found, [1, 2], validated, recipe(), lambda weights: {"loss": math.nan})
    assert result.taken.updates == [20]
    record = result.record()
    assert record == {
        "taken": [20],
        "by": ["loss"],
        "candidates": [{"updates": [20], "values": {"loss": 3.0}}, {"updates": [10, 20], "values": {"loss": None}}],
    }


def test_the_best_validation_whose_checkpoint_is_lost(tmp_path: Path) -> None:
    found = checkpoints(tmp_path, [5, 4])
    validated = [ValidationResult(5, {"loss": 0.0}), *Valley().of(found)]
    result = choose(found, [], validated, recipe(), Valley())
    assert (result.taken.updates, result.best) == ([20], (5,))
    assert result.record() is None, "there was no choice"
    assert result.describe() == "update 20; the best single one, update 5, was not kept"


def test_a_checkpoint_that_was_not_validated(tmp_path: Path) -> None:
    """An interrupted run: its newest checkpoint may be of any update."""
    valley, found = Valley(), checkpoints(tmp_path, [5, 4, 1])
    result = choose(found, [1, 2], valley.of(found[:2]), recipe(), valley)
    assert result.taken.updates == [30] and valley.seen == pytest.approx([1, 2.5])
