"""``sparsenmt distill``: a teacher translates the training source, and a student is trained on its translations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.decode import command as decode

_PATH = click.Path(path_type=Path)
_NOT_SEARCH = {"model", "input_file", "output_file", "tags_file", "documents_file", "n_best", "as_json"}


@click.command("distill", short_help="Train a student on a teacher's translations of its training text.")
@click.argument("teacher", type=_PATH)
@click.argument("recipe_file", metavar="RECIPE", type=_PATH)
@click.argument("overrides", nargs=-1)
@click.option("--corpus", type=_PATH, help="Folder of the distilled text.  [default: `data.directory` with -text]")
@click.option("--until", type=click.Choice(["corpus", "data"]), help="Stop when the text, or the data, are there.")
@click.pass_context
def command(
    context: click.Context,
    /,
    teacher: Path,
    recipe_file: Path,
    overrides: tuple[str, ...],
    corpus: Path | None,
    until: str | None,
    **search: Any,
) -> None:
    """Train the student that RECIPE describes on what the model in the directory TEACHER makes of its training source
    (sequence-level knowledge distillation, Kim and Rush 2016).

    \b
    1. TEACHER translates the source of every corpus in `data.train`. Its targets
       are not read, and need not exist. Validation and test text stay as they are.
    2. The distilled text is prepared in `data.directory`, with a vocabulary of
       its own.
    3. The student is trained.

    The folder of the distilled text holds for each corpus N (from 0) train-N.source and train-N.target, line by line,
    and the recipe with these files in place of its own, which `prepare`, `train` and `sweep` take. OVERRIDES change
    single keys of RECIPE.

    Whatever stops it, the same command goes on: with the translation after the lines that were finished, as `decode`
    does, and behind every stage that is complete. With torchrun, run it once with `--until data` before.

    The options below are those of `sparsenmt decode`, for the teacher: what is not given is as its recipe says.
    """
    from sparsenmt.assemble import load_recipe
    from sparsenmt.interrupts import Interrupted
    from sparsenmt.workflows.distill import DistillRequest, run

    recipe = load_recipe(recipe_file, overrides)
    folder = corpus or Path(f"{recipe.data.directory.rstrip('/')}-text")
    plan = DistillRequest(teacher, recipe, folder, recipe_file.name, search, until)

    def translate(source: Path, target: Path, **beside: Path | None) -> None:
        context.invoke(decode, model=teacher, input_file=source, output_file=target, **beside, **search)

    try:
        run(plan, translate)
    except Interrupted as stop:  # in whatever stage: what is complete stays
        stop.resumable = True
        raise


command.params += [parameter for parameter in decode.params if parameter.name not in _NOT_SEARCH]
