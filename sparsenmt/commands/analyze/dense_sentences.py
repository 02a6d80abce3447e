"""``sparsenmt analyze dense-sentences``: sentences on which a sparse head is unusually dense for their length."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options, site_option
from sparsenmt.model.sites import SiteName


@click.command("dense-sentences")
@site_option("encoder_self")
@click.option(
    "--sparse",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Mean density below which a head is sparse.",
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Number of sentences to list.")
@analysis_options(translates=True, target=True)
def command(arguments: AnalysisArguments, site: SiteName, sparse: float, top: int) -> None:
    """Sentences on which a sparse head gives weight to unusually many positions for the length of the sentence.

    A sentence is compared with the others whose lengths differ by at most a tenth, or by 1, if there are ten of them.

    \b
    density   of the head on the sentence, see `analyze density`
    expected  the mean on sentences of similar length
    excess    the difference in standard deviations, which count as at least 0.01
    """
    from sparsenmt.analysis.dense_sentences import measure_dense_sentences

    arguments.show(measure_dense_sentences, site=site, sparse=sparse, top=top)
