"""``sparsenmt slice``: the layers of a model that run at a depth, as a model."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.commands.options import PATH


@click.command("slice")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--encoder-layers", "-n", type=int, metavar="N", help="Encoder layers to keep.  [default: all]")
@click.option("--decoder-layers", "-m", type=int, metavar="M", help="Decoder layers to keep.  [default: all]")
@click.option("--unroll", is_flag=True, help="Write a layer that is applied several times as several layers.")
def command(model: Path, output: Path, encoder_layers: int | None, decoder_layers: int | None, unroll: bool) -> None:
    """Cut the model in MODEL_DIR to its first N encoder and M decoder layers, and write it to OUT.

    OUT is a model directory of its own. Without any option it translates as MODEL_DIR does with --encoder-layers N
    --decoder-layers M. A model that was not trained for that depth (see `model.depth`) is cut with a warning.
    """
    from sparsenmt.progress import notify
    from sparsenmt.workflows.slice import slice_model

    found = slice_model(model, output, encoder_layers=encoder_layers, decoder_layers=decoder_layers, unroll=unroll)
    layers = f"{found.depth[0]} encoder and {found.depth[1]} decoder layers of {model}"
    notify(f"{output}: {layers}, {found.parameters:,} of {found.parameters_before:,} parameters")
