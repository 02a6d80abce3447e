"""`sparsenmt recipe-docs`: the reference of all recipe keys, from the schema and the registered methods."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("recipe-docs", short_help="Write the reference of all recipe keys.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default: the terminal.")
def command(output: Path | None) -> None:
    """Write the reference of all recipe keys and method options (docs/recipes.md)."""
    from sparsenmt.recipe.document import document
    from sparsenmt.sparsity.registry import methods

    text = document(methods())
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8", newline="\n")
