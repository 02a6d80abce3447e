"""``sparsenmt analyze position``: the sparsity rate of each place in a word."""

from __future__ import annotations

from typing import Literal

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options


@click.command("position")
@click.option(
    "--unit",
    type=click.Choice(["characters", "pieces", "sentence"]),
    help="Relative position of characters in the word, number of the subword token, or relative position of tokens in "
    "the sentence.  [default: depends on tokenizer and text]",
)
@analysis_options(words=True)
def command(arguments: AnalysisArguments, unit: Literal["characters", "pieces", "sentence"] | None) -> None:
    """Sparsity rate by position in the word.

    For character models by the relative position of a character: 0 is the first of its word, 1 the last. For others by
    the number of the token in words of several tokens. Punctuation at the ends of a word is not part of it.
    Punctuation, the space symbol, words of one symbol and </s> have rows of their own.

    In a text without spaces between words (Japanese, Chinese, Thai) the tokens do not show where words begin: places
    are then those in the sentence, unless --words or given tags say where the words are.

    share of dropped: of all drops inside words, those in this place.
    """
    from sparsenmt.analysis.position_rates import measure_position_rates

    arguments.show(measure_position_rates, unit=unit)
