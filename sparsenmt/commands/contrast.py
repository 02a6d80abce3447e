"""``sparsenmt contrast``: contrastive test suites by forced decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import (
    PATH,
    PIPE,
    batch_tokens_option,
    depth_options,
    disabled_heads_option,
    language_options,
    processor_options,
    report_options,
    tags_option,
)
from sparsenmt.commands.output import show
from sparsenmt.evaluation.contrast.items import FORMATS


@click.command("contrast")
@click.argument("arguments", metavar="MODEL_DIR... SUITE", type=PATH, nargs=-1)
@click.option(
    "--format", "suite_format", type=click.Choice(FORMATS[1:]), help="Format of the suite.  [default: detected]"
)
@click.option("--source", type=PIPE, help="Source sentences, one per line, instead of SUITE.")
@click.option("--correct", type=PIPE, help="With --source: the correct translations.")
@click.option("--incorrect", type=PIPE, multiple=True, help="With --source: incorrect translations; repeatable.")
@click.option("--type", "types", multiple=True, help="Only this type of error; repeatable.")
@click.option("--origin", "origins", multiple=True, help="Only sentences of this corpus; repeatable.")
@click.option(
    "--exclude-training",
    "training",
    type=PATH,
    multiple=True,
    help="Leave out items that occur in this training text: a recipe, a model directory, or a text file; repeatable.",
)
@click.option("--normalize", is_flag=True, help="Divide log-probabilities by the number of tokens, </s> included.")
@tags_option
@batch_tokens_option("sources in a batch times the longest, or times its targets")
@depth_options
@disabled_heads_option
@language_options
@processor_options
@report_options(plot="Draw accuracies to this file, .png or .svg.")
@click.option("--items", "items_file", type=PATH, help="Write every item with its scores to this file, tab-separated.")
@click.option("--save-suite", "suite_file", type=PATH, help="Write the chosen items as a suite in JSON to this file.")
def command(arguments: tuple[Path, ...], **options: Any) -> None:
    """Measure how often models find the correct translation more probable than incorrect ones.

    \b
    sparsenmt contrast MODEL_DIR... SUITE
    sparsenmt contrast MODEL_DIR... --source S --correct C --incorrect I [--incorrect I2]
    sparsenmt contrast SUITE --save-suite FILE
        no model: only build the suite

    SUITE is a folder of DistilLingEval or one with several of them, LingEval97's JSON, JSON of MuCoW or ContraWSD, or
    the key of a MuCoW translation suite (de-en.key.txt), from which pairs are made.

    An item is right if the correct target's log-probability is higher than that of every incorrect one; ties are wrong.
    --disable-heads MODEL=SITE:N,N disables heads of one model only, named as in the table.
    Confidence intervals are Wilson's, at 95%; further models are compared with the first by the exact McNemar test.
    """
    from sparsenmt.workflows.evaluation.contrast import ContrastRequest, contrast

    line_aligned = any(options[name] for name in ("source", "correct", "incorrect"))
    request = ContrastRequest(
        models=arguments if line_aligned else arguments[:-1],
        suite=None if line_aligned or not arguments else arguments[-1],
        **options,
    )
    result = contrast(request)
    if result.shown is not None:
        click.echo(result.shown)
        return
    for note in (f"{len(result.suite.items):,} items", *result.suite.notes):
        show(note)
