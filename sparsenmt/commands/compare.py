"""``sparsenmt compare``: trained models side by side: quality, size, attention and speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, metrics_option, report_options, threads_option
from sparsenmt.metric import METRICS


@click.command("compare", short_help="Compare trained models: quality, size, attention, speed.")
@click.argument("models", metavar="MODEL_DIR...", type=PATH, nargs=-1, required=True)
@click.option("--source", type=PATH, help="Text to translate.  [default: `data.test` of the models' recipes]")
@click.option("--reference", type=PATH, help="Reference translation of --source.")
@click.option("--documents", type=PATH, help="File with the document id of every line of --source.")
@click.option("--tags", type=PATH, help="Part-of-speech tags of --source, for models that read them.")
@click.option(
    "--set",
    "kind",
    type=click.Choice(["test", "dev"]),
    default="test",
    show_default=True,
    help="Which text of the recipes to translate.",
)
@click.option("--baseline", type=PATH, help="Model that the others are tested against.  [default: the first]")
@metrics_option(list(METRICS), ", the most important first.  [default: the first recipe's; with BLEU, chrF too]")
@click.option("--attention/--no-attention", default=True, show_default=True, help="Count attended positions.")
@click.option("--speed/--no-speed", default=True, show_default=True, help="Time decoding.")
@click.option(
    "--speed-lines", type=click.IntRange(1), default=200, show_default=True, help="Number of lines to time decoding on."
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Timed runs of each model; the fastest counts.",
)
@threads_option
@report_options(plot="Draw quality against speed to this file, .png or .svg.")
def command(json_file: Path | None, csv_file: Path | None, plot_file: Path | None, **options: Any) -> None:
    """Compare trained models on one text, each with the decoding options of its own recipe.

    \b
    score, chrF ...  values of the metrics; difference and p-value: paired bootstrap
                     against the baseline, 1000 resamples
    sparsity         share of encoder outputs that a filter drops
    attended         positions with weight per query, over all heads of all sites;
                     density: their share of the visible positions
    training         target tokens/s, median of the training's own log; comparable
                     between runs on one machine only
    decoding         target tokens/s, measured here, the models taking turns

    Translations and scores are kept in the model directories (evaluation/) as long as model and text stay the same:
    another model can be added without translating again with the others. Speed is always measured anew.
    """
    from sparsenmt.report.output_files import ReportFiles
    from sparsenmt.report.tables import render
    from sparsenmt.workflows.compare import CompareRequest, compare_models

    request = CompareRequest(files=ReportFiles(json_file, csv_file, plot_file), **options)
    click.echo(render(compare_models(request)))
