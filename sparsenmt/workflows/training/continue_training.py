"""Continue from a trained model: its newest state, the meaning of a recipe's updates, and models without training."""

from __future__ import annotations

import math
from pathlib import Path

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import starting_weights
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_card import write_model_card
from sparsenmt.data.prepared_data import read_manifest
from sparsenmt.errors import UserError
from sparsenmt.process.devices import pick_device
from sparsenmt.process.progress import notify
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.auxiliary_loss import Ramp
from sparsenmt.recipe.schema import Recipe, Training
from sparsenmt.storage.files import check_absent, new_directory
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.state import Progress
from sparsenmt.workflows.training.prepare import open_data
from sparsenmt.workflows.training.run_checks import same_vocabularies
from sparsenmt.workflows.training.train import StartingPoint

_LEAST_RATE = 0.1  # of the peak


def starting_point(model: Path, *, weights_only: bool, remedy: str) -> tuple[StartingPoint, Progress]:
    """Return a model's newest checkpoint and its progress, or its final weights and update 0.

    Args:
        weights_only: True: the final weights.
        remedy: the hint of the error if there is no checkpoint.

    Raises:
        UserError: the directory is no model, or has no checkpoint.
    """
    model_directory.read_manifest(model)
    if weights_only:
        return StartingPoint(model), Progress()
    checkpoints = find_checkpoints(model)
    if not checkpoints:
        raise UserError("the model has no checkpoint to continue from", where=str(model), hint=remedy)
    newest = checkpoints[-1]
    newest.check()
    return StartingPoint(model, newest), newest.progress()


def rate_after(training: Training, start: Progress) -> float | None:
    """Return the constant learning rate after a schedule that falls to 0; None: the schedule continues.

    A linear or cosine schedule has no rate left at its end, and little if it were stretched to a few more updates.
    Zhang et al. 2021 keep ``inverse_sqrt``: the rate is what that would have, but at least a tenth of the peak, as
    where there was no warm-up.
    """
    if not start.update or not training.falls_to_zero:
        return None
    return training.learning_rate * min(max(math.sqrt(training.warmup_updates / start.update), _LEAST_RATE), 1.0)


def tell_rate(recipe: Recipe, start: Progress) -> None:
    """Report the learning rate of a run that continues another one whose schedule has ended."""
    if not _was_begun_falling(recipe) and (rate := rate_after(recipe.training, start)) is not None:
        notify(
            f"after its {recipe.training.schedule} schedule the model is trained on with a constant learning rate of "
            f"{rate:.3g}, {rate / recipe.training.learning_rate:.0%} of the peak; training.learning_rate scales it"
        )


def _was_begun_falling(recipe: Recipe) -> bool:
    """Return True if an earlier version has begun the run: its rate falls to 0 again, on the stretched schedule."""
    directory = Path(recipe.directory)
    begun = (directory / model_directory.MANIFEST).exists()
    return begun and model_directory.read_recipe(directory).training.falls_to_zero


def counted_on(recipe: Recipe, start: Progress, updates: int | None) -> Recipe:
    """Return the recipe with updates, epochs and schedules that count from the beginning of the first run.

    After a schedule that has fallen to 0 the rate is that of `rate_after`.

    Args:
        start: progress of the first run.
        updates: number of updates to train on; None: the recipe's.
    """
    training = recipe.training
    # A run that takes over another run's state begins with a new epoch.
    epochs = None if training.max_epochs is None else training.max_epochs + (start.epoch + 1 if start.update else 0)
    further = training.max_updates if updates is None else updates
    changed: dict[str, object] = {"max_updates": max(start.update + further, 1), "max_epochs": epochs}
    if (rate := rate_after(training, start)) is not None and not _was_begun_falling(recipe):
        changed |= {"schedule": "constant", "learning_rate": rate}
    losses = {
        name: loss.model_copy(update={"weight": _later(loss.weight, start), "target": _later(loss.target, start)})
        for name, loss in recipe.losses.items()
    }
    return recipe.model_copy(update={"losses": losses, "training": training.model_copy(update=changed)})


def _later(value: float | Ramp | None, start: Progress) -> float | Ramp | None:
    """Return a schedule that is delayed by the updates of the first run; other values as they are."""
    return value.model_copy(update={"after": value.after + start.update}) if isinstance(value, Ramp) else value


def check_vocabularies(recipe: Recipe, model: Path) -> None:
    """Raise UserError unless a recipe's data have a model's vocabularies: its embeddings must keep their tokens."""
    directory = Path(recipe.data.directory)
    read_manifest(directory)
    if not same_vocabularies(directory, model):
        raise UserError(
            f"the prepared data have other vocabularies than {model}",
            where=recipe.data.directory,
            hint="Prepare them from the text and the tokenizer settings that the model was trained with.",
        )


def make_untrained(recipe: Recipe, start: StartingPoint) -> None:
    """Write a model directory with the weights of another model and a recipe of its own, complete or not at all.

    Of several processes the first one writes it.

    Raises:
        UserError: the directory exists and holds something else; or the models differ in more than methods with
            parameters of their own.
    """
    workers = Workers.join(pick_device(recipe.training.device))
    if workers.is_main_process:
        _write_untrained(recipe, start)
    workers.barrier()


def _write_untrained(recipe: Recipe, start: StartingPoint) -> None:
    """Write the directory for `make_untrained`, unless it is there already."""
    directory, record = Path(recipe.directory), start.record()
    if (directory / model_directory.MANIFEST).exists():
        same = model_directory.read_manifest(directory)["started_from"] == record
        if same and model_directory.read_recipe(directory) == recipe and model_directory.weights_after(directory) == 0:
            notify(f"{directory}: nothing is left to do")
            return
    check_absent(directory)
    data = open_data(recipe)
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    model = build_model(recipe.model, **sizes, seed=recipe.training.seed)
    weights, added = starting_weights(start.directory, model)
    with new_directory(directory.resolve(), start.directory) as partial:
        parts = data.tokenizers, data.features, data.fingerprint
        model_directory.initialise(
            partial, recipe, *parts, started_from=record, text=model_directory.text_sides(start.directory)
        )
        model_directory.write_weights(partial, weights, after=0, made_of=[])
    write_model_card(directory)
    text = f"; {', '.join(added)}: initial values" if added else ""
    notify(f"{directory}: the weights of {start.directory}{text}")
