"""``sparsenmt analyze roles``: what heads of the encoder specialise in."""

from __future__ import annotations

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.commands.attending import attend


@click.command("roles", short_help="Positional, BPE-merging and interrogation heads.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Score from which on a head has a role.",
)
@click.option(
    "--interrogative",
    "words",
    multiple=True,
    help="An interrogative word of the source language; repeatable.  [default: a list for en, de, fr, ro]",
)
@analysis_options()
def command(job: AnalysisRequest, threshold: float, words: tuple[str, ...]) -> None:
    """What heads of the encoder's self-attention specialise in; scores are mean attention mass.

    \b
    previous, current, next  weight of the position 1 before, at, or 1 after the query
    merging                  the most that a piece of a word puts on the rest of the word;
                             of a word of one piece, on itself
    interrogation            weight of the question mark, from interrogative words
    """
    text = job.read()

    from sparsenmt.analysis.alphas import learned_alphas
    from sparsenmt.analysis.roles import RoleCounter, grid, interrogatives, report
    from sparsenmt.report.plots import heatmaps

    found = []
    for label, bundle in job.opened():
        asking = frozenset(word.lower() for word in words) or interrogatives(bundle.recipe.data.source_language)
        sources = job.sources(bundle, text)
        counter = RoleCounter(sources, bundle.tokenizers.source, asking)
        attend(job, label, bundle, sources, None, [counter], ["encoder_self"])
        found.append(counter.found(label, learned_alphas(bundle.model)))
    job.finish(report(found, threshold=threshold), draw=lambda: heatmaps(grid(found)))
