"""``sparsenmt shortlist``: the tokens that a model may generate for a source sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, PIPE, TEXT, count_option, language_options, processor_options
from sparsenmt.errors import UserError


@click.command("shortlist")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.argument("corpora", metavar="SOURCE TARGET ...", type=TEXT, nargs=-1, required=True)
@click.option("--output", "-o", type=PATH, required=True, help="File to write.")
@click.option(
    "--alignments",
    type=TEXT,
    multiple=True,
    help="Alignments of a corpus, line by line, of the model's tokens: 0-0 1-2.  [default: estimated by IBM Model 1]",
)
@count_option("--first", 100, "Number of the most frequent target tokens, which may come out of every sentence.")
@count_option("--best", 100, "Largest number of translations of each source token.")
@click.option("--test", type=PIPE, help="Text to translate with and without the shortlist.")
@count_option("--rounds", 3, "Turns of both; the fastest counts.")
@language_options
@processor_options
def command(model: Path, corpora: tuple[Path, ...], **options: Any) -> None:
    """Make a vocabulary shortlist for the model in MODEL_DIR from line-aligned texts.

    With a shortlist, the translation of a sentence has only the most frequent tokens and the best translations of the
    tokens of its source, so that decoding multiplies with a small part of the output table:

    \b
    sparsenmt shortlist runs/en-de train.en train.de -o en-de.shortlist --test test.en
    sparsenmt decode runs/en-de --shortlist en-de.shortlist -i text.en

    Printed are its size, the mean number of tokens of a sentence, and with --test the share of translations that change
    and the time of decoding, with and without it in turns.
    """
    from sparsenmt.workflows.conversion.shortlist import ShortlistRequest, make_shortlist

    if len(corpora) % 2:
        raise UserError(
            f"{len(corpora)} files are not pairs of a source and a target",
            where="SOURCE TARGET",
            hint="Name both sides of each corpus: train.en train.de.",
        )
    pairs = list(zip(corpora[::2], corpora[1::2], strict=True))
    make_shortlist(ShortlistRequest(model, pairs, **options))
