"""``sparsenmt recipe-schema``: what editors complete and underline in recipes."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.commands.options import PATH


@click.command("recipe-schema")
@click.option("--sweep", is_flag=True, help="Describe sweep files instead of recipes.")
@click.option("--output", "-o", type=PATH, help="File to write.  [default: stdout]")
def command(sweep: bool, output: Path | None) -> None:
    """Write the JSON Schema of recipes, with all methods of the package and of installed plugins.

    Editors with a YAML server, such as VS Code with its YAML extension, complete keys, explain them and underline
    mistakes in a file that names the schema in a comment:

    \b
    # yaml-language-server: $schema=recipe.schema.json

    The path is relative to the file. The recipes of the package have such a line. What keys mean together is checked by
    the commands alone.
    """
    from sparsenmt.recipe.json_schema import recipe_schema, schema_text, sweep_schema
    from sparsenmt.report.output_files import check_outputs
    from sparsenmt.sparsity import registry
    from sparsenmt.storage.files import explain_write_errors, write_text

    check_outputs({"--output": output})
    text = schema_text(sweep_schema() if sweep else recipe_schema(registry.methods()))
    if output is None:
        click.echo(text, nl=False)
        return
    with explain_write_errors(output):
        write_text(output, text)
