"""``sparsenmt export``: a model directory for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, depth_options
from sparsenmt.export.table import TARGETS

_FORMATS = "\n".join(f"{name:<17}" + ("\n" + " " * 17).join(entry.lines) for name, entry in TARGETS.items())
_HELP = f"""Write the model in MODEL_DIR as the directory OUT, for another program.

\b
{_FORMATS}

OUT gets the weights (in fp32, but for --file int8), the vocabularies, a README.md with the lines that run the model,
and sparsenmt.json, which records its origin. It computes the same: a layer that runs several times is written that
often, of a model with several exits the chosen depth (or the deepest) is written, and disabled heads stay disabled. A
model with sparse attention, fixed heads or memory filters is refused: these programs cannot compute it.

A model that was imported from Marian and not changed goes out as the files that it came from.
"""


@click.command("export", help=_HELP)
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--to", "target", type=click.Choice(list(TARGETS)), required=True, help="Format to write.")
@click.option(
    "--file",
    type=click.Choice(["npz", "bin", "int8"]),
    help="Kind of Marian's model file. [default: as it was imported, otherwise npz]",
)
@click.option(
    "--text",
    type=PATH,
    metavar="FILE",
    help="Lines in the source language, which are translated to find the ranges of numbers for --file int8. Unchanged "
    "matrices of 8 bits that were imported need none.",
)
@depth_options
def command(model: Path, output: Path, target: str, **options: Any) -> None:
    """Write a model directory for another program."""
    from sparsenmt.workflows.conversion.export import export_model

    export_model(model, output, target, **options)
