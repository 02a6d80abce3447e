"""``sparsenmt compare``: trained models side by side: quality, size, attention and speed."""

from __future__ import annotations

from typing import Any

import click

from sparsenmt.commands.options import (
    PATH,
    TEXT,
    evaluation_options,
    language_options,
    processor_options,
    report_options,
    sacrebleu_p_option,
    scoring_options,
    set_option,
    significance_options,
    source_options,
    speed_options,
)


@click.command("compare")
@click.argument("models", metavar="MODEL_DIR...", type=PATH, nargs=-1, required=True)
@source_options
@click.option("--documents", type=TEXT, help="File with the document id of every line of --source.")
@click.option("--tags", type=TEXT, help="Part-of-speech tags of --source, for models that read them.")
@click.option("--text", type=TEXT, help="Text that language models read.  [default: that of the recipes]")
@set_option
@click.option("--baseline", type=PATH, help="Model that the others are tested against.  [default: the first]")
@scoring_options("the first recipe's; with BLEU, chrF too", texts=True)
@significance_options
@sacrebleu_p_option
@click.option("--attention/--no-attention", default=True, show_default=True, help="Count attended positions.")
@speed_options
@click.option(
    "--batch-sentences",
    type=click.IntRange(1),
    help="Time batches of this number of lines of similar length.  [default: the recipe's `decoding.batch_tokens`]",
)
@click.option("--explain", is_flag=True, help="Say for each method what it leaves out, and whether that saves time.")
@evaluation_options
@language_options
@processor_options
@report_options(plot="Draw quality against speed to this file, .png or .svg.")
def command(**options: Any) -> None:
    """Compare trained models on one text, each with the decoding options of its own recipe, in fp32.

    \b
    score, chrF ...  values of the metrics; difference and two-sided p-value (--significance)
                     against the baseline
    sparsity         share of encoder outputs that a filter drops
    attended         kept positions with weight per query, over all heads of all
                     sites; density: their share of the visible positions
    training         target tokens/s, median of the training's own log, and the median
                     deviation from it; comparable between runs on one machine only;
                     and the seconds of all updates
    decoding         target tokens/s, measured here, the models taking turns: of the
                     fastest turn, and the median; spread: excess time of the slowest
                     turn over the fastest; speed: equal where the turns of a model
                     and of the baseline overlap

    With --explain each method of each model is compared with a dense twin: a model of the list that differs in the
    method alone, or the same weights with the method switched off.

    Language models read one text (--text): bits per character, mean and longest learned span; differences are tested
    on blocks of lines.

    Translations and scores are kept in the model directories (evaluation/) as long as model and text stay the same:
    another model can be added without translating again with the others. Speed is always measured anew.
    """
    from sparsenmt.workflows.evaluation.compare import CompareRequest, compare_models

    click.echo(compare_models(CompareRequest(**options)))
