"""``sparsenmt distill``: a teacher translates the training source, and a student is trained on its translations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, decoding_options


@click.command("distill")
@click.argument("teacher", type=PATH)
@click.argument("recipe_file", metavar="RECIPE", type=PATH)
@click.argument("overrides", nargs=-1)
@click.option("--corpus", type=PATH, help="Folder of the distilled text.  [default: `data.directory` with -text]")
@click.option(
    "--until",
    type=click.Choice(["corpus", "data"]),
    help="Stop after the translation (corpus) or after the preparation (data).",
)
@decoding_options
def command(teacher: Path, recipe_file: Path, overrides: tuple[str, ...], corpus: Path | None, **options: Any) -> None:
    """Train the student of RECIPE on the translations that the model in the directory TEACHER makes of its training
    source (sequence-level knowledge distillation, Kim and Rush 2016).

    \b
    1. TEACHER translates the source of every corpus in `data.train`. Its targets
       are not read and need not exist. Validation and test text stay as they are.
    2. The distilled text is prepared in `data.directory`, with a vocabulary of
       its own.
    3. The student is trained.

    The folder of the distilled text holds for each corpus N (from 0) train-N.source and train-N.target, line by line,
    and the recipe with these files instead of its own, for `prepare`, `train` and `sweep`. OVERRIDES change single keys
    of RECIPE.

    If it is interrupted, the same command resumes: the translation after the lines that were finished, as `decode`
    does, and every other stage after those that are complete. Before running it with torchrun, run it once with
    `--until data`.

    The options from --method on are those of `sparsenmt decode`, for the teacher. Options that are not given are those
    of its recipe.
    """
    from sparsenmt.workflows.training.distill import DistillRequest, distill

    distill(DistillRequest.of(teacher, recipe_file, overrides, folder=corpus, **options))
