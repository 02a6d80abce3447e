"""``sparsenmt export``: a model directory for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, depth_options


@click.command("export")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option(
    "--to", "target", type=click.Choice(["ctranslate2", "safetensors-hf"]), required=True, help="Format to write."
)
@depth_options
def command(model: Path, output: Path, target: Any, encoder_layers: int | None, decoder_layers: int | None) -> None:
    """Write the model in MODEL_DIR as the directory OUT, for another program.

    \b
    ctranslate2      CTranslate2 (needs the package: pip install 'sparsenmt[export]')
    safetensors-hf   Hugging Face Transformers: a Pegasus model (normalisation before
                     the sub-layers) or a Marian model (after them); with
                     model.embedding_norm an mBART or a BART model

    OUT gets the weights in fp32, the vocabularies, a README.md with the lines that run the model, and sparsenmt.json,
    which records its origin. It computes the same: a layer that runs several times is written that often, of a model
    with several exits the chosen depth (or the deepest) is written, and disabled heads stay disabled. A model with
    sparse attention, fixed heads or memory filters is refused: these programs cannot compute it.
    """
    from sparsenmt.workflows.conversion.export import export_model

    export_model(model, output, target, encoder_layers=encoder_layers, decoder_layers=decoder_layers)
