"""Going on from a trained model: where it stands, what a recipe's numbers then mean, and models without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.recipe.schema import Ramp, Recipe
    from sparsenmt.training.checkpoints import Checkpoint
    from sparsenmt.training.state import Progress
    from sparsenmt.workflows.train import StartingPoint


def starting_point(model: Path, *, weights_only: bool, remedy: str) -> tuple[StartingPoint, Progress]:
    """What a run begins from, and where that stands: a model's newest checkpoint, or its final weights at update 0.

    Args:
        remedy: what to do where there is no checkpoint, as a sentence.

    Raises:
        UserError: it is no model, or has no checkpoint to go on from.
    """
    from sparsenmt import store
    from sparsenmt.training.checkpoints import find_checkpoints
    from sparsenmt.training.state import Progress
    from sparsenmt.workflows.train import StartingPoint

    store.read_manifest(model)
    if weights_only:
        return StartingPoint(model), Progress()
    checkpoints = find_checkpoints(model)
    if not checkpoints:
        raise UserError("the model has no checkpoint to go on from", where=str(model), hint=remedy)
    newest: Checkpoint = checkpoints[-1]
    newest.check()
    return StartingPoint(model, newest), newest.progress()


def counted_on(recipe: Recipe, start: Progress, updates: int | None) -> Recipe:
    """The recipe with updates, epochs and schedules that count from the beginning of the first run.

    Args:
        updates: to train on; None: as many as the recipe says.
    """
    training = recipe.training
    # What is taken over from another run begins with a new epoch.
    epochs = None if training.max_epochs is None else training.max_epochs + (start.epoch + 1 if start.update else 0)
    further = training.max_updates if updates is None else updates
    changed = {"max_updates": max(start.update + further, 1), "max_epochs": epochs}
    losses = {
        name: loss.model_copy(update={"weight": _later(loss.weight, start), "target": _later(loss.target, start)})
        for name, loss in recipe.losses.items()
    }
    return recipe.model_copy(update={"losses": losses, "training": training.model_copy(update=changed)})


def _later(value: float | Ramp | None, start: Progress) -> float | Ramp | None:
    """A schedule moved behind the update that the run begins at."""
    from sparsenmt.recipe.schema import Ramp

    return value.model_copy(update={"after": value.after + start.update}) if isinstance(value, Ramp) else value


def check_vocabularies(recipe: Recipe, model: Path) -> None:
    """What the model has learned must stay about the same pieces.

    Raises:
        UserError: the prepared data have other ones.
    """
    from sparsenmt.data.prepared_data import read_manifest
    from sparsenmt.workflows.run_checks import same_vocabularies

    read_manifest(Path(recipe.data.directory))
    if not same_vocabularies(Path(recipe.data.directory), model):
        raise UserError(
            f"the prepared data have other vocabularies than {model}",
            where=recipe.data.directory,
            hint="Prepare them from the text and the tokenizer settings that the model was trained with.",
        )


def make_untrained(recipe: Recipe, origin: StartingPoint) -> None:
    """A model directory with another recipe and otherwise the same weights, complete or not there at all.

    Raises:
        UserError: the directory exists and holds something else; or the models differ in more than methods with
            parameters of their own.
    """
    from sparsenmt import store
    from sparsenmt.assemble import build_model, required_features
    from sparsenmt.data.prepare.pipeline import check_prepared_data
    from sparsenmt.data.prepared_data import PreparedData
    from sparsenmt.files import new_directory

    directory, record = Path(recipe.directory), origin.record()
    if _is_made(recipe, record):
        click.echo(f"{directory}: nothing is left to do", err=True)
        return
    store.check_absent(directory)
    data = PreparedData.open(recipe.data.directory)
    check_prepared_data(recipe.data, required_features(recipe))
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    model = build_model(recipe.model, **sizes, seed=recipe.training.seed)
    weights, added = store.starting_weights(origin.directory, model)
    with new_directory(directory.resolve()) as partial:
        store.initialise(partial, recipe, data.tokenizers, data.features, data.fingerprint, started_from=record)
        store.write_weights(partial, weights, after=0, made_of=[])
    text = f"; {', '.join(added)}: initial values" if added else ""
    click.echo(f"{directory}: the weights of {origin.directory}{text}", err=True)


def _is_made(recipe: Recipe, record: Mapping[str, str]) -> bool:
    """Whether the directory is what `make_untrained` would make."""
    from sparsenmt import store

    directory = Path(recipe.directory)
    if not (directory / store.MANIFEST).exists():
        return False
    same = store.read_manifest(directory)["started_from"] == record
    return same and store.read_recipe(directory) == recipe and store.weights_after(directory) == 0
