"""``sparsenmt analyze density``: the share of the visible positions that an attention head gives weight to."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options
from sparsenmt.commands.options import sites_option
from sparsenmt.model.sites import SITES, SiteName


@click.command("density")
@sites_option
@analysis_options(language_models=True, translates=True, target=True)
def command(arguments: AnalysisArguments, sites: tuple[SiteName, ...]) -> None:
    """Density of attention: the share of visible positions with weight (2^-126 or more).

    A head's density on a sentence is the mean over queries; the histogram counts heads on sentences. Decoders read the
    model's own translations, or those of --target. Language models read --text with their segment memory; a segment
    counts as a sentence.

    \b
    density   mean over the sentences
    attended  positions with weight, mean over queries
    visible   positions that causality, pattern, span and a filter's mask leave, mean over queries
    """
    from sparsenmt.analysis.density import measure_density

    arguments.show(measure_density, sites=sites or SITES)
