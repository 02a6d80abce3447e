"""``sparsenmt analyze by-length``: quality by the length of sentences, of models and of translations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options, reference_option
from sparsenmt.commands.options import (
    disabled_heads_option,
    documents_option,
    scoring_options,
    significance_options,
    whole_numbers,
)

_COMPARE_MT = "compare-mt"


@click.command("by-length")
@reference_option
@click.option(
    "--edges",
    metavar=f"N,N|{_COMPARE_MT}",
    help=f"Greatest length of every bucket but the last; {_COMPARE_MT}: that tool's bins, "
    "9,19,29,39,49,59.  [default: 10,20,30,40,50; of characters 20,40,60,80,100]",
)
@click.option(
    "--length",
    type=click.Choice(
        [f"{text}-{unit}" for text in ("reference", "source") for unit in ("words", "tokens", "characters")]
    ),
    help="The length: words between spaces, tokens of --tokenize, or characters, of the reference or of --input.  "
    "[default: reference-words; reference-characters if the reference has no spaces between words]",
)
@scoring_options("bleu")
@documents_option
@disabled_heads_option
@significance_options
@analysis_options(translates=True, files=True)
def command(arguments: AnalysisArguments, reference: Path, edges: str | None, **options: Any) -> None:
    """Quality by the length of sentences, of models and of files of translations, in any order.

    Models translate --input, without the heads of --disable-heads: MODEL=SITE:N,N disables heads of one model only,
    named as in the table. Each system is compared with the first.
    """
    from sparsenmt.analysis.length_buckets import COMPARE_MT_EDGES, measure_by_length

    limits: Sequence[int] | None = COMPARE_MT_EDGES if edges == _COMPARE_MT else None
    if edges is not None and limits is None:
        limits = whole_numbers(edges, "--edges", most=1_000_000, rising=True, example="10,20,30")
    arguments.show(measure_by_length, reference, edges=limits, **options)
