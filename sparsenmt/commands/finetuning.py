"""Fine-tuning with filters: which runs a call of `sparsenmt finetune-l0` means, and how each of them is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.commands.train import Origin
    from sparsenmt.recipe.schema import AuxiliaryLoss, MemoryChoice, Ramp, Recipe
    from sparsenmt.training.checkpoints import Checkpoint
    from sparsenmt.training.state import Progress

_AVERAGED = 5  # checkpoints, where the recipe does not say: as in the paper


@dataclass(frozen=True)
class Plan:
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


def run(plan: Plan) -> None:
    """Make all runs of a plan, one after the other, and compare them if there are several.

    Raises:
        UserError: the model has gates already, or nothing to go on from; or something is wrong with the recipe.
    """
    from sparsenmt.commands.sweep import compare_runs
    from sparsenmt.commands.train import Origin, train

    origin, start = _start(plan)
    recipe = _recipe(plan)
    runs = _runs(plan, recipe, start)
    for each in runs:
        _check_vocabularies(each.recipe, plan.model)
    for each in runs:
        if plan.is_sweep:
            click.echo(f"{each.name}: {each.directory}", err=True)
        if plan.updates == 0:
            add_filters(each, Origin(plan.model))
        else:
            train(each.recipe, origin)
    if plan.is_sweep:
        compare_runs({each.name: each.directory for each in runs}, _output(plan, recipe))


def _start(plan: Plan) -> tuple[Origin, Progress]:
    """What the runs begin from, and where that stands."""
    from sparsenmt import store
    from sparsenmt.commands.train import Origin
    from sparsenmt.training.checkpoints import find_checkpoints
    from sparsenmt.training.state import Progress

    store.read_manifest(plan.model)
    if store.read_recipe(plan.model).model.memory:
        raise UserError(
            "the model already has gates",
            where=str(plan.model),
            hint="Name the dense model that it came from; `sparsenmt train` goes on with a run that was interrupted.",
        )
    if plan.restart or plan.updates == 0:
        return Origin(plan.model), Progress()
    checkpoints = find_checkpoints(plan.model)
    if not checkpoints:
        raise UserError(
            "the model has no checkpoint to go on from",
            where=str(plan.model),
            hint="Take --restart, to begin with its weights and a new optimizer, or a directory with checkpoints.",
        )
    newest: Checkpoint = checkpoints[-1]
    newest.check()
    return Origin(plan.model, newest), newest.progress()


def _recipe(plan: Plan) -> Recipe:
    """The recipe with filters; its numbers of updates count from the beginning of the fine-tuning."""
    from sparsenmt import store
    from sparsenmt.assemble import check_recipe
    from sparsenmt.recipe.load import load
    from sparsenmt.sparsity.registry import methods

    if plan.recipe is not None:
        recipe = load(plan.recipe, methods(), plan.overrides, check_recipe)
        if not recipe.model.memory:
            raise UserError(
                "the recipe has no filter to train",
                where=f"{plan.recipe}: model.memory",
                hint="Add one, as in `memory: [{name: l0drop}]`, or leave the recipe out.",
            )
        return recipe
    overrides = ["model.memory=[{name: l0drop}]", "losses={l0: {weight: 0}}", *plan.overrides]
    recipe = load(plan.model / store.RECIPE, methods(), overrides, check_recipe)
    if plan.updates is None:
        raise UserError(
            "say how long to train on",
            where="--updates",
            hint="The paper takes a sixth of the model's own updates; or name a recipe.",
        )
    if not plan.weights and not plan.targets and plan.updates:
        raise UserError("say how much to drop", where="--weight", hint="Give --weight, --target, or a recipe.")
    return recipe


def _runs(plan: Plan, recipe: Recipe, start: Progress) -> list[Run]:
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


def _output(plan: Plan, recipe: Recipe) -> Path:
    if plan.output is not None:
        return plan.output
    return Path(recipe.directory) if plan.recipe is not None else Path(f"{plan.model}-l0drop")


def _ramped(value: float, updates: int | None) -> float | Ramp:
    from sparsenmt.recipe.schema import Ramp

    return Ramp(from_=0.0, to=value, steps=updates) if updates else value


def _absolute(
    plan: Plan,
    recipe: Recipe,
    losses: Mapping[str, AuxiliaryLoss],
    memory: list[MemoryChoice],
    directory: Path,
    start: Progress,
) -> Recipe:
    """The recipe of one run, with updates and epochs that count from the beginning of the dense model's training."""
    from sparsenmt.recipe.schema import Ramp

    training = recipe.training
    updates = training.max_updates if plan.updates is None else plan.updates
    # What is taken over from another run begins with a new epoch.
    epochs = None if training.max_epochs is None else training.max_epochs + (start.epoch + 1 if start.update else 0)
    averaged = {"average": training.average_last or _AVERAGED, "last": 1, "best": 0, None: training.average_last or 1}
    average_last = averaged[plan.keep]
    changed = {
        "max_updates": max(start.update + updates, 1),
        "max_epochs": epochs,
        "average_last": average_last,
        "keep_last": max(training.keep_last, average_last),
    }

    def later(value: float | Ramp | None) -> float | Ramp | None:
        if not isinstance(value, Ramp):
            return value
        return value.model_copy(update={"after": value.after + start.update})

    moved = {
        name: loss.model_copy(update={"weight": later(loss.weight), "target": later(loss.target)})
        for name, loss in losses.items()
    }
    return recipe.model_copy(
        update={
            "directory": str(directory),
            "model": recipe.model.model_copy(update={"memory": memory}),
            "losses": moved,
            "training": training.model_copy(update=changed),
        }
    )


def _check_vocabularies(recipe: Recipe, model: Path) -> None:
    """What the model has learned must stay about the same pieces."""
    from sparsenmt.commands.checks import same_vocabularies
    from sparsenmt.data.prepared import read_manifest

    read_manifest(Path(recipe.data.directory))
    if not same_vocabularies(Path(recipe.data.directory), model):
        raise UserError(
            f"the prepared data have other vocabularies than {model}",
            where=recipe.data.directory,
            hint="Prepare them from the text and the tokenizer settings that the model was trained with.",
        )


def add_filters(run: Run, origin: Origin) -> None:
    """A model directory with filters and otherwise the same weights, complete or not there at all: no training.

    Raises:
        UserError: the directory exists and holds something else.
    """
    from sparsenmt import store
    from sparsenmt.assemble import build_model, required_features
    from sparsenmt.data.prepare import check_prepared_for
    from sparsenmt.data.prepared import PreparedData
    from sparsenmt.files import new_directory

    recipe, record = run.recipe, origin.record()
    if _is_made(run, record):
        click.echo(f"{run.directory}: nothing is left to do", err=True)
        return
    store.check_absent(run.directory)
    data = PreparedData.open(recipe.data.directory)
    check_prepared_for(recipe.data, required_features(recipe))
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    model = build_model(recipe.model, **sizes, seed=recipe.training.seed)
    weights, added = store.starting_weights(origin.directory, model)
    with new_directory(run.directory.resolve()) as partial:
        store.initialise(partial, recipe, data.tokenizers, data.features, data.fingerprint, started_from=record)
        store.write_weights(partial, weights, after=0, made_of=[])
    text = f"; {', '.join(added)}: initial values" if added else ""
    click.echo(f"{run.directory}: the weights of {origin.directory}{text}", err=True)


def _is_made(run: Run, record: Mapping[str, str]) -> bool:
    """Whether the directory is what `add_filters` would make."""
    from sparsenmt import store

    if not (run.directory / store.MANIFEST).exists():
        return False
    same = store.read_manifest(run.directory)["started_from"] == record
    return same and store.read_recipe(run.directory) == run.recipe and store.weights_after(run.directory) == 0
