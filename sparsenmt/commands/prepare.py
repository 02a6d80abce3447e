"""``sparsenmt prepare``: raw text to binary data."""

from __future__ import annotations

import click


@click.command("prepare", short_help="Read a recipe's text, train its tokenizer, write binary data.")
@click.argument("recipe", type=click.Path())
@click.argument("overrides", nargs=-1)
@click.option("--dump-config", is_flag=True, help="Print the resolved recipe and stop.")
def command(recipe: str, overrides: tuple[str, ...], dump_config: bool) -> None:
    """Turn a recipe's text into binary training data.

    Trains the tokenizers, encodes and filters the corpora, and writes data.directory. Does nothing if the data are up
    to date; after an interrupt the same command goes on with what was not finished. OVERRIDES change single keys of the
    recipe, for instance data.tokenizer.vocabulary_size=4000.
    """
    from sparsenmt.assemble import load_recipe, required_features
    from sparsenmt.data.prepare.pipeline import prepare
    from sparsenmt.interrupts import Interrupted
    from sparsenmt.recipe.load import dump

    resolved = load_recipe(recipe, overrides)
    if dump_config:
        click.echo(dump(resolved), nl=False)
        return
    try:
        report = prepare(resolved.data, features=required_features(resolved))
    except Interrupted as stop:
        stop.note, stop.resumable = "the stages that were finished are kept", True
        raise
    click.echo(report.describe())
