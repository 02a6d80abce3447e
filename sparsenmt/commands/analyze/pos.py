"""``sparsenmt analyze pos`` and ``sparsenmt analyze-pos``: the sparsity rate of each part of speech."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options
from sparsenmt.commands.options import tagger_option


@click.command("pos")
@tagger_option("Tagger for a text without tags.")
@click.option("--language", help="Language of the text, for the tagger.  [default: the first model's source language]")
@analysis_options()
def command(arguments: AnalysisArguments, tagger: str) -> None:
    """Sparsity rate by part of speech, overall and against the overall rate.

    BPEH and BPEO are the first and the later subword tokens of split words, whatever their tag. Words of one token are
    function words, content words, punctuation or rest, and have a row for their tag. </s> is a row of its own.

    Tags are those of a CoNLL-U --input (language-specific tags before universal ones) or of --tags, or a tagger makes
    them. Unknown tags count as rest.
    """
    from sparsenmt.analysis.pos_rates import measure_pos_rates

    arguments.show(measure_pos_rates, tagger=tagger)
