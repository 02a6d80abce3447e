"""``sparsenmt analyze roles``: the specialisation of encoder heads."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options


@click.command("roles")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Least score of a head with a role.",
)
@click.option(
    "--interrogative",
    "words",
    multiple=True,
    help="Interrogative word of the source language; repeatable.  [default: a list for en, de, fr, ro]",
)
@analysis_options(words=True)
def command(arguments: AnalysisArguments, threshold: float, words: tuple[str, ...]) -> None:
    """Roles of the heads of encoder self-attention; scores are mean attention mass.

    \b
    previous, current, next  weight of the position 1 before, at, or 1 after the query
    merging                  the most that a token of a word puts on the rest of the word;
                             of a word of one token, on itself
    interrogation            weight of the question mark, from interrogative words

    In a text without spaces between words, merging is measured if --words or given tags say where the words are.
    """
    from sparsenmt.analysis.head_roles import measure_head_roles

    arguments.show(measure_head_roles, threshold=threshold, words=words)
