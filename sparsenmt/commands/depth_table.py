"""``sparsenmt depth-table``: quality and decoding time at every depth, and the oracle that picks one per sentence."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.commands.options import PATH, batch_tokens_option, threads_option, whole_numbers
from sparsenmt.errors import UserError

_EXAMPLE = "1-3,6"


@click.command("depth-table", short_help="Quality and time at every depth, and the oracle.")
@click.argument("models", metavar="[MODEL_DIR]...", type=PATH, nargs=-1)
@click.option(
    "--grid",
    type=PATH,
    multiple=True,
    help="Separately trained models of different depths: a model directory, or a directory of such; repeatable.",
)
@click.option("--source", type=PATH, help="Text to translate.  [default: `data.test` of the models' recipes]")
@click.option("--reference", type=PATH, help="Reference translation of --source, line by line.")
@click.option(
    "--set",
    "kind",
    type=click.Choice(["test", "dev"]),
    default="test",
    show_default=True,
    help="Text of the recipes to use.",
)
@click.option("--encoder-layers", metavar="N,N-N", help="Encoder depths.  [default: all trained]")
@click.option("--decoder-layers", metavar="M,M-M", help="Decoder depths.  [default: all trained]")
@click.option("--beam-size", metavar="B,B", help="Beam sizes; 1: greedy search.  [default: the recipe's]")
@batch_tokens_option()
@click.option("--speed/--no-speed", default=True, help="Time decoding, all depths in turns.  [default: --speed]")
@click.option("--speed-lines", type=click.IntRange(1), default=200, show_default=True, help="Number of lines to time.")
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns of each depth; the fastest counts."
)
@threads_option
@click.option("--output", "-o", type=PATH, help="Directory to write.  [default: the first model's, with -depths]")
@click.option("--plot", type=PATH, help="Draw the tables to this file, .png or .svg.  [default: table.png in --output]")
def command(
    models: tuple[Path, ...],
    grid: tuple[Path, ...],
    source: Path | None,
    reference: Path | None,
    kind: str,
    encoder_layers: str | None,
    decoder_layers: str | None,
    beam_size: str | None,
    batch_tokens: int | None,
    speed: bool,
    speed_lines: int,
    rounds: int,
    threads: int | None,
    output: Path | None,
    plot: Path | None,
) -> None:
    """Translate a text at every depth of each model (its first n encoder and m decoder layers), and report BLEU, chrF
    and decoding time of each; the scores of the oracle, which takes the depth with the best chrF for each sentence; and
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
    from sparsenmt.workflows.depth_table import DepthTableRequest, depth_table

    if not models and not grid:
        raise UserError("there is no model", where="MODEL_DIR", hint="Name a model directory, or several with --grid.")
    request = DepthTableRequest(
        models=models,
        grid=grid,
        output=output or Path(f"{str([*models, *grid][0]).rstrip('/')}-depths"),
        source=source,
        reference=reference,
        kind=kind,
        encoder_layers=_numbers(encoder_layers, "--encoder-layers"),
        decoder_layers=_numbers(decoder_layers, "--decoder-layers"),
        beam_sizes=_numbers(beam_size, "--beam-size"),
        batch_tokens=batch_tokens,
        speed_lines=speed_lines if speed else 0,
        rounds=rounds,
        plot=plot,
        threads=threads,
    )
    result = depth_table(request)
    click.echo(result.text)
    click.echo("written: " + ", ".join(map(str, result.files)), err=True)


def _numbers(text: str | None, option: str) -> list[int] | None:
    return None if text is None else whole_numbers(text, option, ranges=True, example=_EXAMPLE)
