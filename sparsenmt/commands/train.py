"""`sparsenmt train`: prepared data and a recipe to a model directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.runtime import is_main_process

if TYPE_CHECKING:
    from sparsenmt.recipe.schema import Recipe


@click.command("train", short_help="Train a model.")
@click.argument("recipe_file", metavar="RECIPE", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1)
@click.option("--from", "start_from", type=click.Path(path_type=Path), help="Start from the weights of this model.")
@click.option("--dump-config", is_flag=True, help="Print the resolved recipe and stop.")
def command(recipe_file: Path, overrides: tuple[str, ...], start_from: Path | None, dump_config: bool) -> None:
    """Train the model that RECIPE describes, on the data that `sparsenmt prepare` wrote.

    OVERRIDES change single keys of the recipe, for instance training.learning_rate=1e-3. A run that was interrupted
    goes on from its last checkpoint when it is started again with the same recipe and overrides.
    """
    from sparsenmt.assemble import check_recipe
    from sparsenmt.recipe.load import dump, load
    from sparsenmt.sparsity.registry import methods

    recipe = load(recipe_file, methods(), overrides, check_recipe)
    if dump_config:
        click.echo(dump(recipe), nl=False)
        return
    from sparsenmt.interrupts import Interrupted

    try:
        train(recipe, None if start_from is None else StartingPoint(start_from))
    except Interrupted as interrupt:
        # Whatever was cut short, preparations and the final averaging too, is done again from what is complete.
        interrupt.resumable = is_main_process()
        raise


def train(recipe: Recipe, origin: StartingPoint | None = None) -> None:
    """Train, and write the final weights; or go on with a run that was interrupted."""
    import torch

    from sparsenmt.assemble import required_features
    from sparsenmt.data.prepare.pipeline import check_prepared_for
    from sparsenmt.data.prepared import PreparedData
    from sparsenmt.devices import pick_device, use_threads
    from sparsenmt.training.distribution import Workers
    from sparsenmt.workflows.run_checks import check_lengths

    options = recipe.training
    if options.threads is not None:
        use_threads(options.threads)
    device = pick_device(options.device)
    workers = Workers.join(device)
    data = PreparedData.open(recipe.data.directory)
    check_prepared_for(recipe.data, required_features(recipe))
    check_lengths(recipe, data)
    with _run_directory(recipe, data.fingerprint, origin, workers) as run:
        if run.newest is not None and _ended(run.directory, run.newest, recipe):
            message = f"{run.directory}: the run ended after update {run.newest.update:,}; nothing is left to do"
            click.echo(message, err=True)
            return
        torch.manual_seed(options.seed + workers.rank)
        trainer = make_trainer(recipe, data, run.directory, device, workers, None if run.newest else origin)
        if device.type == "cuda":
            # Building the models seeded CUDA's generator alike on all ranks: each draws dropout of its own.
            torch.cuda.manual_seed(options.seed + workers.rank)
        _begin(run, recipe, data, trainer)
        workers.barrier()
        if not trainer.progress.finished:
            trainer.run()
        if workers.is_main_process:
            finish(recipe, run.directory, trainer.best(1), trainer.progress.update)


@dataclass(frozen=True)
class StartingPoint:
    """What a run begins from: the weights of a model, or all that another run's checkpoint holds."""

    directory: Path
    checkpoint: Checkpoint | None = None

    def record(self) -> dict[str, str]:
        """What the new model directory says of it."""
        from sparsenmt import store
        from sparsenmt.tensors import recorded_digest

        store.read_manifest(self.directory)
        if self.checkpoint is None:
            return {"path": str(self.directory), "sha256": store.weights_digest(self.directory)}
        path = self.checkpoint.path
        hint = "Take the checkpoint from a copy, or name another model."
        return {"path": str(path), "sha256": recorded_digest(path / store.WEIGHTS, hint=hint)}


@dataclass(frozen=True)
class _Run:
    """A model directory that this process may write into, and what it holds."""

    directory: Path
    newest: Checkpoint | None
    changed: list[tuple[str, Any, Any]]
    """What the recipe has differently than when the run began, without being another run."""
    started_from: dict[str, str] | None


def _ended(directory: Path, newest: Checkpoint, recipe: Recipe) -> bool:
    """Whether nothing is left to do: the recipe's end is reached, and the weights were written then."""
    from sparsenmt import store
    from sparsenmt.training.validation_history import limit_reached

    progress = newest.progress()
    over = progress.finished and limit_reached(progress, recipe.training, recipe.losses)
    return over and store.weights_after(directory) == newest.update


@contextmanager
def _run_directory(recipe: Recipe, fingerprint: str, origin: StartingPoint | None, workers: Workers) -> Iterator[_Run]:
    """Look at the model directory, lock it, and find the checkpoint to go on from."""
    from sparsenmt import store
    from sparsenmt.files import directory_lock
    from sparsenmt.training.checkpoints import clean_checkpoints, find_checkpoints
    from sparsenmt.workflows.run_checks import check_start

    directory = Path(recipe.directory)
    record = None if origin is None else origin.record()

    def look() -> list[tuple[str, Any, Any]]:
        resumes = bool(find_checkpoints(directory))
        digest = None if record is None else record["sha256"]
        return check_start(directory, recipe, fingerprint, digest, resumes)

    look()
    workers.barrier()  # all have looked at the directory before the first writes into it
    with ExitStack() as stack:
        if workers.is_main_process:
            store.make_directory(directory)
            stack.enter_context(directory_lock(directory, "trains in this directory"))
            for message in clean_checkpoints(directory):
                click.echo(f"warning: {message}", err=True)
        workers.barrier()
        changed = look()  # again, now that nobody else writes
        checkpoints = find_checkpoints(directory)
        yield _Run(directory, checkpoints[-1] if checkpoints else None, changed, record)


def _begin(run: _Run, recipe: Recipe, data: PreparedData, trainer: Trainer) -> None:
    """Put the trainer where the run stands, and the directory into the state that fits."""
    from sparsenmt import store
    from sparsenmt.files import describe_change
    from sparsenmt.training.training_log import truncate_log

    leads = trainer.workers.is_main_process
    if run.newest is None:
        if leads:
            store.initialise(
                run.directory,
                recipe,
                data.tokenizers,
                data.features,
                data.fingerprint,
                started_from=run.started_from,
            )
        return
    trainer.restore(run.newest)
    if not leads:
        return
    truncate_log(run.directory, trainer.progress)
    click.echo(f"{run.directory}: goes on after update {trainer.progress.update:,}", err=True)
    if run.changed:
        store.write_recipe(run.directory, recipe)
        click.echo("changed: " + "; ".join(describe_change(*change) for change in run.changed), err=True)


def make_trainer(
    recipe: Recipe,
    data: PreparedData,
    directory: Path,
    device: torch.device,
    workers: Workers,
    origin: StartingPoint | None,
) -> Trainer:
    """Put model, data, losses and validation together."""
    from sparsenmt import store
    from sparsenmt.assemble import build_model, check_losses, without_gain
    from sparsenmt.data.batching import EpochPlan
    from sparsenmt.training.loop import Trainer, TrainingData
    from sparsenmt.training.precision import MasterWeights, pick_dtype
    from sparsenmt.workflows.run_checks import same_vocabularies
    from sparsenmt.workflows.validate import make_validator

    options = recipe.training
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    model = build_model(recipe.model, **sizes, seed=options.seed).to(device)
    check_losses(recipe, model)
    for note in without_gain(recipe.model, model) if workers.is_main_process else ():
        click.echo(f"warning: {note}", err=True)
    if origin is not None and origin.checkpoint is None:
        given, added = store.starting_weights(origin.directory, model)
        model.load_state_dict(given)
        if workers.is_main_process and added:
            click.echo(f"{origin.directory} does not have {', '.join(added)}: new", err=True)
        if workers.is_main_process and not same_vocabularies(Path(recipe.data.directory), origin.directory):
            text = "has other vocabularies: its embeddings belong to other pieces"
            click.echo(f"warning: {origin.directory} {text}", err=True)
    validator = make_validator(recipe, data, build_model(recipe.model, **sizes, seed=options.seed).to(device), device)
    weights = MasterWeights(model, pick_dtype(options.compute_dtype, device))
    plan = EpochPlan(data.train, data.train_weights, options.batch_tokens, options.seed)
    trainer = Trainer(
        model,
        weights,
        TrainingData(data.train, plan),
        options,
        losses=recipe.losses,
        directory=directory,
        validate=validator,
        workers=workers,
        device=device,
    )
    if origin is not None and origin.checkpoint is not None:
        trainer.take_over(origin.checkpoint)
    return trainer


def finish(recipe: Recipe, directory: Path, best: list[int], last: int) -> None:
    """Write the final weights: the average of the last checkpoints, or the best one."""
    from sparsenmt import store
    from sparsenmt.training.checkpoints import average_weights, find_checkpoints

    checkpoints = find_checkpoints(directory)
    count = recipe.training.average_last
    if count:
        chosen = checkpoints[-count:]
        plural = "" if len(chosen) == 1 else "s"
        what = (
            f"the mean of {len(chosen)} checkpoint{plural}, update{plural} {', '.join(str(c.update) for c in chosen)}"
        )
    else:
        wanted = best[0] if best and any(c.update == best[0] for c in checkpoints) else last
        chosen = [c for c in checkpoints if c.update == wanted]
        what = f"update {wanted}"
    weights = average_weights(chosen)
    store.write_weights(directory, weights, after=checkpoints[-1].update, made_of=[c.update for c in chosen])
    click.echo(f"{directory / store.WEIGHTS}: {what}", err=True)


if TYPE_CHECKING:
    import torch

    from sparsenmt.data.prepared import PreparedData
    from sparsenmt.training.checkpoints import Checkpoint
    from sparsenmt.training.distribution import Workers
    from sparsenmt.training.loop import Trainer
