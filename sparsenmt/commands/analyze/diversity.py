"""``sparsenmt analyze diversity``: the disagreement of the heads of a layer."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options
from sparsenmt.commands.options import sites_option
from sparsenmt.model.sites import SITES, SiteName


@click.command("diversity")
@sites_option
@analysis_options(language_models=True, translates=True, target=True)
def command(arguments: AnalysisArguments, sites: tuple[SiteName, ...]) -> None:
    """Jensen-Shannon divergence between the heads of every layer: the higher, the more the heads differ.

    The base of the entropies is the number of visible positions, so that the divergence is at most 1. Queries that see
    one position are skipped; the mean is over all others. Decoders read the model's own translations, or those of
    --target.
    """
    from sparsenmt.analysis.diversity import measure_diversity

    arguments.show(measure_diversity, sites=sites or SITES)
