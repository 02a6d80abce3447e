"""``sparsenmt train``: train the model of a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.commands.options import PATH, dump_config_option, training_overrides, training_processor_options

if TYPE_CHECKING:
    from sparsenmt.recipe.schema import Recipe


@click.command("train")
@click.argument("recipe_file", metavar="RECIPE", type=PATH)
@click.argument("overrides", nargs=-1)
@click.option("--from", "start_from", metavar="MODEL_DIR", type=PATH, help="Start from the weights of this model.")
@training_processor_options
@dump_config_option
def command(
    recipe_file: Path, overrides: tuple[str, ...], start_from: Path | None, dump_config: bool, **options: Any
) -> None:
    """Train the model that RECIPE describes, on the data that `sparsenmt prepare` wrote.

    OVERRIDES change single keys of the recipe, for instance training.learning_rate=1e-3. If a run was interrupted, the
    same recipe and overrides resume it from its last checkpoint.
    """
    from sparsenmt.assemble.checks import load_recipe
    from sparsenmt.recipe.load import dump

    recipe = load_recipe(recipe_file, [*overrides, *training_overrides(**options)])
    if dump_config:
        click.echo(dump(recipe), nl=False)
        return

    from sparsenmt.process.progress import notify
    from sparsenmt.workflows.training.train import train

    train(recipe, start=start_from)
    notify(_next_commands(recipe))


def _next_commands(recipe: Recipe) -> str:
    """Return the commands that measure and show a trained model, with the test set of its recipe if it has one."""
    model, test = shlex.quote(recipe.directory), recipe.data.test
    if recipe.data.is_language_model:
        text = "FILE" if test is None else shlex.quote(str(test.text))
        return f"  Score it with: sparsenmt score --model {model} --text {text}"
    names = ("FILE", "FILE") if test is None else (shlex.quote(str(test.source)), shlex.quote(str(test.target)))
    files = "--source {} --reference {}".format(*names)
    score = f"  Score it with: sparsenmt score --model {model} {files}"
    return f"{score}\n  See what it does with: sparsenmt report {model} {files} -o report.html"
