"""``sparsenmt prepare``: raw text to binary data."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.commands.options import PATH, dump_config_option
from sparsenmt.commands.output import show


@click.command("prepare")
@click.argument("recipe_file", metavar="RECIPE", type=PATH)
@click.argument("overrides", nargs=-1)
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Processes that encode sentence pairs, of one thread each; the result is the same.  "
    "[default: one, with the tokenizer's own threads]",
)
@dump_config_option
def command(recipe_file: Path, overrides: tuple[str, ...], processes: int | None, dump_config: bool) -> None:
    """Turn the text of RECIPE into binary training data.

    Trains the tokenizers, encodes and filters the corpora, and writes data.directory. Does nothing if the data are up
    to date. If it is interrupted, the same command resumes after the stages that were finished. OVERRIDES change single
    keys of the recipe, for instance data.tokenizer.vocabulary_size=4000.
    """
    from sparsenmt.assemble.checks import load_recipe
    from sparsenmt.recipe.load import dump

    recipe = load_recipe(recipe_file, overrides)
    if dump_config:
        click.echo(dump(recipe), nl=False)
        return

    from sparsenmt.workflows.training.prepare import prepare_together

    report = prepare_together(recipe, processes)
    if report is not None:
        show(report.describe())
