"""`sparsenmt train`: prepared data and a recipe to a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

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
    from sparsenmt.recipe.load import dump, load
    from sparsenmt.sparsity.registry import methods

    recipe = load(recipe_file, methods(), overrides)
    if dump_config:
        click.echo(dump(recipe), nl=False)
        return
    train(recipe, start_from)


def train(recipe: Recipe, start_from: Path | None = None) -> None:
    """Train, and write the final weights."""
    import torch

    from sparsenmt import store
    from sparsenmt.assemble import required_features
    from sparsenmt.commands.checks import check_lengths, check_start
    from sparsenmt.commands.threads import use_threads
    from sparsenmt.data.prepare import check_prepared_for
    from sparsenmt.data.prepared import PreparedData
    from sparsenmt.training.checkpoints import find_checkpoints
    from sparsenmt.training.distribution import Workers
    from sparsenmt.training.precision import pick_device
    from sparsenmt.training.reporting import cut_back

    options = recipe.training
    if options.threads is not None:
        use_threads(options.threads)
    device = pick_device(options.device)
    workers = Workers.join(device)
    data = PreparedData.open(recipe.data.directory)
    check_prepared_for(recipe.data, required_features(recipe))
    directory = Path(recipe.directory)
    checkpoints = find_checkpoints(directory)
    check_start(directory, recipe, data.fingerprint, start_from, bool(checkpoints))
    check_lengths(recipe, data)
    workers.wait()  # all have looked at the directory before the first writes into it
    if checkpoints and checkpoints[-1].progress().finished and (directory / store.WEIGHTS).exists():
        click.echo(f"{directory}: the run ended after update {checkpoints[-1].update}; nothing is left to do", err=True)
        return
    torch.manual_seed(options.seed + workers.rank)
    trainer = make_trainer(recipe, data, directory, device, workers, start_from)
    if device.type == "cuda":
        # Building the models seeded CUDA's generator alike on all ranks: each draws dropout of its own.
        torch.cuda.manual_seed(options.seed + workers.rank)
    if checkpoints:
        trainer.restore(checkpoints[-1])
        if workers.leads:
            cut_back(directory, trainer.progress.update)
            click.echo(f"{directory}: goes on after update {trainer.progress.update}", err=True)
    elif workers.leads:
        store.initialise(directory, recipe, data.tokenizers, data.features, data.fingerprint)
    workers.wait()
    if not trainer.progress.finished:
        trainer.run()
    if workers.leads:
        finish(recipe, directory, trainer.best(1), trainer.progress.update)


def make_trainer(
    recipe: Recipe, data: PreparedData, directory: Path, device: torch.device, workers: Workers, start_from: Path | None
) -> Trainer:
    """Put model, data, losses and validation together."""
    from sparsenmt import store
    from sparsenmt.assemble import build_model, check_losses
    from sparsenmt.commands.checks import same_vocabularies
    from sparsenmt.commands.validate import make_validator
    from sparsenmt.data.batching import EpochPlan
    from sparsenmt.training.loop import Trainer, TrainingData
    from sparsenmt.training.precision import Weights, pick_dtype

    options = recipe.training
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    model = build_model(recipe.model, **sizes, seed=options.seed).to(device)
    check_losses(recipe, model)
    if start_from is not None:
        store.read_manifest(start_from)
        weights_file = start_from / store.WEIGHTS
        store.load_weights(model, store.read_weights(weights_file), str(weights_file))
        if workers.leads and not same_vocabularies(Path(recipe.data.directory), start_from):
            click.echo(f"warning: {start_from} has other vocabularies: its embeddings belong to other pieces", err=True)
    validator = make_validator(recipe, data, build_model(recipe.model, **sizes, seed=options.seed).to(device), device)
    weights = Weights(model, pick_dtype(options.compute_dtype, device))
    plan = EpochPlan(data.train, data.train_weights, options.batch_tokens, options.seed)
    return Trainer(
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


def finish(recipe: Recipe, directory: Path, best: list[int], last: int) -> None:
    """Write the final weights: the average of the last checkpoints, or the best one."""
    from sparsenmt import store
    from sparsenmt.training.checkpoints import average_weights, find_checkpoints

    checkpoints = find_checkpoints(directory)
    count = recipe.training.average_last
    if count:
        chosen = checkpoints[-count:]
        what = f"the mean of {len(chosen)} checkpoints, updates {', '.join(str(c.update) for c in chosen)}"
    else:
        wanted = best[0] if best and any(c.update == best[0] for c in checkpoints) else last
        chosen = [c for c in checkpoints if c.update == wanted]
        what = f"update {wanted}"
    store.write_weights(directory, average_weights([c.weights_file for c in chosen]))
    click.echo(f"{directory / store.WEIGHTS}: {what}", err=True)


if TYPE_CHECKING:
    import torch

    from sparsenmt.data.prepared import PreparedData
    from sparsenmt.training.distribution import Workers
    from sparsenmt.training.loop import Trainer
