"""``sparsenmt import``: a model of another program as a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH
from sparsenmt.importers.families.table import family_titles

_HELP = f"""Write the model SOURCE of another program as the model directory OUT.

SOURCE is a folder of Hugging Face Transformers with config.json, model.safetensors (or pytorch_model.bin) and the
files of its tokenizer: {family_titles()}. Or it is a model of Marian itself: a folder with decoder.yml (or
config.yml), or its .npz or .bin file. Nothing is downloaded, and no pickle is loaded that holds more than tensors.

OUT is a model directory like any other, for `decode`, `score`, `finetune-l0`, `train --from` and the others. Its recipe
takes the vocabularies from OUT itself (`data.tokenizer.from_model`); name your text in it, or in a recipe of your own,
to train on.
"""


@click.command("import", help=_HELP)
@click.argument("source", metavar="SOURCE", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--name", metavar="NAME", help="Name of the model.  [default: that of SOURCE]")
@click.option("--source-language", metavar="CODE", help="Language of the source.  [default: as SOURCE says]")
@click.option("--target-language", metavar="CODE", help="Language of the target.  [default: as SOURCE says]")
@click.option(
    "--vocabulary",
    "vocabularies",
    metavar="FILE",
    type=PATH,
    multiple=True,
    help="Vocabulary (.spm, .yml) of a single .npz or .bin file of Marian; twice: of source and target.",
)
def command(
    source: Path, output: Path, source_language: str | None, target_language: str | None, **options: Any
) -> None:
    """Write a model of another program as a model directory."""
    from sparsenmt.workflows.conversion.import_model import import_model

    import_model(source, output, languages=(source_language, target_language), **options)
