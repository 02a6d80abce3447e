"""Fine-tuning with filters: which runs a call of `sparsenmt finetune-l0` means, and how each of them is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.recipe.schema import AuxiliaryLoss, MemoryChoice, Ramp, Recipe
    from sparsenmt.training.state import Progress
    from sparsenmt.workflows.train import StartingPoint

_AVERAGED = 5  # checkpoints, where the recipe does not say: as in the paper


@dataclass(frozen=True)
class FinetuneRequest:
    """What the user asked for."""

    model: Path
    recipe: Path | None
    overrides: tuple[str, ...]
    weights: list[float]
    targets: list[float]
    updates: int | None
    ramp: int | None
    restart: bool
    keep: str | None
    baseline: bool
    output: Path | None

    @property
    def is_sweep(self) -> bool:
        """Whether there are several runs, each in a directory of its own."""
        return max(len(self.weights) + len(self.targets), 1) + self.baseline > 1


@dataclass(frozen=True)
class Run:
    """One run: what it is called in tables, and its recipe, with absolute numbers of updates."""

    name: str
    recipe: Recipe

    @property
    def directory(self) -> Path:
        return Path(self.recipe.directory)


def run(plan: FinetuneRequest) -> None:
    """Make all runs of a plan, one after the other, and compare them if there are several.

    Raises:
        UserError: the model has gates already, or nothing to go on from; or something is wrong with the recipe.
    """
    from sparsenmt.workflows.continue_training import check_vocabularies, make_untrained
    from sparsenmt.workflows.gate_sweep import compare_runs
    from sparsenmt.workflows.train import StartingPoint, train

    origin, start = _start(plan)
    recipe = _recipe(plan)
    runs = _runs(plan, recipe, start)
    for each in runs:
        check_vocabularies(each.recipe, plan.model)
    for each in runs:
        if plan.is_sweep:
            click.echo(f"{each.name}: {each.directory}", err=True)
        if plan.updates == 0:
            make_untrained(each.recipe, StartingPoint(plan.model))
        else:
            train(each.recipe, origin)
    if plan.is_sweep:
        compare_runs({each.name: each.directory for each in runs}, _output(plan, recipe))


def _start(plan: FinetuneRequest) -> tuple[StartingPoint, Progress]:
    """What the runs begin from, and where that stands."""
    from sparsenmt import store
    from sparsenmt.workflows.continue_training import starting_point

    store.read_manifest(plan.model)
    if store.read_recipe(plan.model).model.memory:
        raise UserError(
            "the model already has gates",
            where=str(plan.model),
            hint="Name the dense model that it came from; `sparsenmt train` goes on with a run that was interrupted.",
        )
    remedy = "Take --restart, to begin with its weights and a new optimizer, or a directory with checkpoints."
    return starting_point(plan.model, weights_only=plan.restart or plan.updates == 0, remedy=remedy)


def _recipe(plan: FinetuneRequest) -> Recipe:
    """The recipe with filters; its numbers of updates count from the beginning of the fine-tuning."""
    from sparsenmt import store
    from sparsenmt.assemble import load_recipe

    if plan.recipe is not None:
        recipe = load_recipe(plan.recipe, plan.overrides)
        if not recipe.model.memory:
            raise UserError(
                "the recipe has no filter to train",
                where=f"{plan.recipe}: model.memory",
                hint="Add one, as in `memory: [{name: l0drop}]`, or leave the recipe out.",
            )
        return recipe
    overrides = ["model.memory=[{name: l0drop}]", "losses={l0: {weight: 0}}", *plan.overrides]
    recipe = load_recipe(plan.model / store.RECIPE, overrides)
    if plan.updates is None:
        raise UserError(
            "say how long to train on",
            where="--updates",
            hint="The paper takes a sixth of the model's own updates; or name a recipe.",
        )
    if not plan.weights and not plan.targets and plan.updates:
        raise UserError("say how much to drop", where="--weight", hint="Give --weight, --target, or a recipe.")
    return recipe


def _runs(plan: FinetuneRequest, recipe: Recipe, start: Progress) -> list[Run]:
    """One run a value; with neither weights nor targets, the recipe as it is."""
    output = _output(plan, recipe)
    values: list[tuple[str, dict[str, float | Ramp | None]]] = []
    for key, numbers in (("weight", plan.weights), ("target", plan.targets)):
        for number in numbers:
            other = "target" if key == "weight" else "weight"
            values.append((f"{key}-{number:g}", {key: _ramped(number, plan.ramp), other: None}))
    runs = []
    for name, change in values or [("recipe", {})]:
        directory = output / name if plan.is_sweep else output
        losses = {loss: options.model_copy(update=change) for loss, options in recipe.losses.items()}
        if change and not losses:
            option = f"--{name.partition('-')[0]}"
            hint = "Leave it out, or name a recipe with l0drop."
            raise UserError("the recipe's filters have no penalty to weigh", where=option, hint=hint)
        runs.append(Run(name, _absolute(plan, recipe, losses, recipe.model.memory, directory, start)))
    if plan.baseline:
        runs.insert(0, Run("dense", _absolute(plan, recipe, {}, [], output / "dense", start)))
    return runs


def _output(plan: FinetuneRequest, recipe: Recipe) -> Path:
    if plan.output is not None:
        return plan.output
    return Path(recipe.directory) if plan.recipe is not None else Path(f"{plan.model}-l0drop")


def _ramped(value: float, updates: int | None) -> float | Ramp:
    from sparsenmt.recipe.schema import Ramp

    return Ramp(from_=0.0, to=value, steps=updates) if updates else value


def _absolute(
    plan: FinetuneRequest,
    recipe: Recipe,
    losses: Mapping[str, AuxiliaryLoss],
    memory: list[MemoryChoice],
    directory: Path,
    start: Progress,
) -> Recipe:
    """The recipe of one run, with updates and epochs that count from the beginning of the dense model's training."""
    from sparsenmt.workflows.continue_training import counted_on

    training = recipe.training
    averaged = {"average": training.average_last or _AVERAGED, "last": 1, "best": 0, None: training.average_last or 1}
    average_last = averaged[plan.keep]
    changed = {"average_last": average_last, "keep_last": max(training.keep_last, average_last)}
    own = recipe.model_copy(
        update={
            "directory": str(directory),
            "model": recipe.model.model_copy(update={"memory": memory}),
            "losses": dict(losses),
            "training": training.model_copy(update=changed),
        }
    )
    return counted_on(own, start, plan.updates)
