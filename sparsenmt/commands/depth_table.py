"""``sparsenmt depth-table``: quality and decoding time at every depth, and the oracle that picks one a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import click

from sparsenmt.errors import UserError

_PATH = click.Path(path_type=Path)
_MOST = 1000  # layers, beams


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers from ``1-3,6``, in rising order.

    Raises:
        UserError: it is no such list.
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        ends = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        first, last = (0, 0) if ends is None else (int(ends[1]), int(ends[2] or ends[1]))
        if not 1 <= first <= last <= _MOST:
            raise UserError(
                f"'{text}' is not a list of numbers from 1 to {_MOST}",
                where=option,
                hint="Write numbers and ranges with commas between them, as 1-3,6.",
            )
        found |= set(range(first, last + 1))
    return sorted(found)


@click.command("depth-table", short_help="Quality and time at every depth, and the oracle.")
@click.argument("models", metavar="[MODEL_DIR]...", type=_PATH, nargs=-1)
@click.option(
    "--grid",
    type=_PATH,
    multiple=True,
    help="Separately trained models, a depth each: a model directory, or a folder with such; repeat for more.",
)
@click.option("--source", type=_PATH, help="Text to translate.  [default: `data.test` of the models' recipes]")
@click.option("--reference", type=_PATH, help="Its reference translation, line by line.")
@click.option("--set", "kind", type=click.Choice(["test", "dev"]), default="test", help="Which text of the recipes.")
@click.option("--encoder-layers", "encoder", metavar="N,N-N", help="Encoder depths.  [default: all trained]")
@click.option("--decoder-layers", "decoder", metavar="M,M-M", help="Decoder depths.  [default: all trained]")
@click.option("--beam-size", "beams", metavar="B,B", help="Beam sizes; 1: greedy.  [default: the recipe's]")
@click.option("--batch-tokens", type=click.IntRange(1), help="Source tokens in a batch, padding included, times beam.")
@click.option("--speed/--no-speed", default=True, help="Time decoding, all depths taking turns.  [default: do]")
@click.option("--speed-lines", type=click.IntRange(1), default=200, show_default=True, help="Lines that are timed.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns; the fastest counts.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
@click.option("--output", "-o", type=_PATH, help="Folder to write.  [default: the first model's, with -depths]")
@click.option("--plot", "plot_file", type=_PATH, help="Draw it there, .png or .svg.  [default: table.png in --output]")
def command(
    models: tuple[Path, ...],
    grid: tuple[Path, ...],
    source: Path | None,
    reference: Path | None,
    kind: str,
    encoder: str | None,
    decoder: str | None,
    beams: str | None,
    batch_tokens: int | None,
    speed: bool,
    speed_lines: int,
    rounds: int,
    threads: int | None,
    output: Path | None,
    plot_file: Path | None,
) -> None:
    """Translate a text at every depth of each model (its first n encoder and m decoder layers), and show BLEU, chrF and
    decoding time of all of them; what the oracle gives, which takes of each sentence the depth with the best chrF; and
    how often that is which depth.

    \b
    sparsenmt depth-table runs/tied
    sparsenmt depth-table runs/tied --grid runs/vanilla --beam-size 1,4

    All models of --grid together make one table beside those of the others.

    --output holds the translations, and the tables as table.txt, .json, .csv and (with matplotlib) .png. A depth that
    was translated is not translated again, as long as model, text and options are the same: the same command goes on
    where it stopped. Time is measured anew, on the first lines: start-up is not in it, and it is relative to the
    deepest cell of the first model, with the largest beam.
    """
    from sparsenmt.interrupts import Interrupted
    from sparsenmt.workflows.depth_table import DepthTableRequest, run

    if not models and not grid:
        raise UserError("there is no model", where="MODEL_DIR", hint="Name a model directory, or several with --grid.")
    job = DepthTableRequest(
        models=models,
        grid=grid,
        text=(source, reference),
        kind=kind,
        encoder=None if encoder is None else numbers(encoder, "--encoder-layers"),
        decoder=None if decoder is None else numbers(decoder, "--decoder-layers"),
        beams=None if beams is None else numbers(beams, "--beam-size"),
        batch_tokens=batch_tokens,
        speed_lines=speed_lines if speed else 0,
        rounds=rounds,
        output=output or Path(f"{str([*models, *grid][0]).rstrip('/')}-depths"),
        plot=plot_file,
    )
    if threads is not None:
        from sparsenmt.devices import use_threads

        use_threads(threads)
    try:
        run(job)
    except Interrupted as stop:
        stop.note, stop.resumable = "the depths that were translated are kept", True
        raise
