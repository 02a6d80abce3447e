"""``sparsenmt export``: a model directory for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from sparsenmt.commands.options import depth_options

if TYPE_CHECKING:
    from sparsenmt.export.directory import Target

_TARGETS = ("ctranslate2", "safetensors-hf")


@click.command("export", short_help="Write a model for CTranslate2 or Transformers.")
@click.argument("model", metavar="MODEL_DIR", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(_TARGETS), required=True, help="Whose format.")
@depth_options
def command(model: Path, output: Path, target: str, encoder_layers: int | None, decoder_layers: int | None) -> None:
    """Write the model in MODEL_DIR as the directory OUT, for another program.

    \b
    ctranslate2      CTranslate2 (needs the package: pip install 'sparsenmt[export]')
    safetensors-hf   Hugging Face Transformers: a Pegasus model (normalisation before
                     the sub-layers) or a Marian model (after them)

    OUT gets the weights in fp32, the vocabularies, a README.md with the lines that run the model, and sparsenmt.json,
    which says what it was made from. It computes the same: a layer that runs several times is written that often, of a
    model with several exits the chosen depth (or the deepest) is written, and disabled heads stay disabled. A model
    with sparse attention, given heads or memory filters is refused: these programs cannot compute it.
    """
    import torch

    from sparsenmt.export.directory import check_target, export_model
    from sparsenmt.export.plain import parameters
    from sparsenmt.store import open_model
    from sparsenmt.workflows.depth_choice import at_depth

    chosen = cast("Target", target)
    check_target(chosen, output)
    bundle = open_model(model, device=torch.device("cpu"), dtype=None)
    options = at_depth(bundle.model.plan, bundle.recipe.decoding, encoder_layers, decoder_layers)
    plain = export_model(bundle, output, chosen, options.depth)
    layers = f"{len(plain.encoder)} encoder and {len(plain.decoder)} decoder layers"
    click.echo(f"{output}: {layers}, {parameters(plain):,} weights; README.md says how to run it", err=True)
