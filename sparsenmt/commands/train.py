"""``sparsenmt train``: train the model of a recipe."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.commands.options import PATH, dump_config_option, training_overrides, training_processor_options


@click.command("train")
@click.argument("recipe_file", metavar="RECIPE", type=PATH)
@click.argument("overrides", nargs=-1)
@click.option("--from", "start_from", metavar="MODEL_DIR", type=PATH, help="Start from the weights of this model.")
@training_processor_options
@dump_config_option
def command(
    recipe_file: Path,
    overrides: tuple[str, ...],
    start_from: Path | None,
    threads: int | None,
    device: str | None,
    dump_config: bool,
) -> None:
    """Train the model that RECIPE describes, on the data that `sparsenmt prepare` wrote.

    OVERRIDES change single keys of the recipe, for instance training.learning_rate=1e-3. If a run was interrupted, the
    same recipe and overrides resume it from its last checkpoint.
    """
    from sparsenmt.assemble.checks import load_recipe
    from sparsenmt.recipe.load import dump

    recipe = load_recipe(recipe_file, [*overrides, *training_overrides(threads, device)])
    if dump_config:
        click.echo(dump(recipe), nl=False)
        return

    from sparsenmt.workflows.training.train import train

    train(recipe, start=start_from)
