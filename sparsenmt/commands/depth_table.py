"""``sparsenmt depth-table``: quality and decoding time at every depth, and the oracle that picks one per sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import (
    PATH,
    Decorator,
    batch_tokens_option,
    documents_option,
    language_options,
    parsed,
    processor_options,
    scoring_options,
    set_option,
    source_options,
    speed_options,
    whole_numbers,
)
from sparsenmt.commands.output import show_written
from sparsenmt.errors import UserError


def _depths_option(option: str, name: str, metavar: str, text: str) -> Decorator:
    """An option that is a list of whole numbers and ranges."""
    callback = parsed(whole_numbers, ranges=True, example="1-3,6")
    return click.option(option, name, metavar=metavar, callback=callback, help=text)


@click.command("depth-table")
@click.argument("models", metavar="[MODEL_DIR]...", type=PATH, nargs=-1)
@click.option(
    "--grid",
    type=PATH,
    multiple=True,
    help="Separately trained models of different depths: a model directory, or a directory of such; repeatable. A "
    "directory whose models repeat depths makes a table of its own.",
)
@source_options
@documents_option
@set_option
@language_options
@scoring_options("bleu chrf")
@_depths_option("--encoder-layers", "encoder_layers", "N,N-N", "Encoder depths.  [default: all trained]")
@_depths_option("--decoder-layers", "decoder_layers", "M,M-M", "Decoder depths.  [default: all trained]")
@_depths_option("--beam-size", "beam_sizes", "B,B", "Beam sizes; 1: greedy search.  [default: the recipe's]")
@batch_tokens_option()
@speed_options
@processor_options
@click.option("--output", "-o", type=PATH, help="Directory to write.  [default: the first model's, with -depths]")
@click.option("--plot", type=PATH, help="Draw the tables to this file, .png or .svg.  [default: table.png in --output]")
def command(
    models: tuple[Path, ...], grid: tuple[Path, ...], output: Path | None, speed: bool, speed_lines: int, **options: Any
) -> None:
    """Translate a text at every depth of each model (its first n encoder and m decoder layers), and report the scores
    and decoding time of each; those of the oracle, which takes the depth with the best chrF for each sentence; and
    the share of sentences for which it takes each depth.

    \b
    sparsenmt depth-table runs/tied
    sparsenmt depth-table runs/tied --grid runs/vanilla --beam-size 1,4

    All models of --grid together make one table beside those of the other models.

    --output gets the translations, and the tables as table.txt, .json, .csv and (with matplotlib) .png. A depth is
    translated once as long as model, text and options are the same, and an interrupted command resumes where it
    stopped. Time is measured in every run, on the first lines, without start-up; it is relative to the deepest depth of
    the first model with the largest beam size.
    """
    from sparsenmt.workflows.evaluation.depth_table import DepthTableRequest, depth_table

    if not models and not grid:
        raise UserError("there is no model", where="MODEL_DIR", hint="Name a model directory, or several with --grid.")
    output = output or Path(f"{str([*models, *grid][0]).rstrip('/')}-depths")
    request = DepthTableRequest(models, grid, output, speed_lines=speed_lines if speed else 0, **options)
    written = depth_table(request)
    show_written(written.text, written.files)
