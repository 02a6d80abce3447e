"""``sparsenmt analyze by-length``: quality by the length of the reference, of models and of translations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyze.options import GROUP_METRICS, AnalysisArguments, analysis_options, reference_option
from sparsenmt.commands.options import metrics_option, significance_options, whole_numbers

if TYPE_CHECKING:
    from sparsenmt.evaluation.significance import PairedTest


@click.command("by-length", short_help="Quality by reference length.")
@reference_option
@click.option(
    "--edges",
    default="10,20,30,40,50",
    show_default=True,
    metavar="N,N",
    help="Greatest length of every bucket but the last, in words of the reference.",
)
@metrics_option(GROUP_METRICS, ".  [default: bleu]")
@significance_options
@analysis_options(translates=True, files=True)
def command(
    arguments: AnalysisArguments, reference: Path, edges: str, metrics: tuple[str, ...], test: PairedTest
) -> None:
    """Quality by the length of the reference, in words, of models and of files of translations, in any order.

    Models translate --input. Each system is compared with the first, in buckets of at least ten
    sentences.
    """
    limits = whole_numbers(edges, "--edges", most=1_000_000, rising=True, example="10,20,30")

    from sparsenmt.analysis.length_buckets import measure_by_length

    chosen = metrics or ("bleu",)
    arguments.show(measure_by_length, reference, edges=limits, metrics=chosen, test=test)
