"""``sparsenmt analyze density``: how many of the keys that it may see an attention head gives weight to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.commands.attending import SITES, each_attended, finish, sites_option

if TYPE_CHECKING:
    from sparsenmt.model.sites import SiteName


@click.command("density", short_help="Share of visible positions that heads give weight to.")
@sites_option
@analysis_options(translates=True, targets=True)
def command(job: AnalysisRequest, sites: tuple[SiteName, ...]) -> None:
    """Density of attention: the share of visible positions with a weight that is not 0.

    A head's density on a sentence is the mean over queries; the histogram counts heads on sentences. Decoders read the
    model's own translations, or those of --target.

    \b
    density   mean over the sentences
    attended  positions with weight, a query
    visible   positions that it may see: what causality, the pattern and a filter's mask leave
    """
    text = job.read()
    wanted = sites or SITES

    from sparsenmt.analysis.alphas import learned_alphas
    from sparsenmt.analysis.density import DensityCounter, panels, report
    from sparsenmt.report.plots import panel_grid

    attended = each_attended(job, text, DensityCounter, wanted)
    found = [counter.found(label, learned_alphas(bundle.model)) for label, bundle, counter in attended]
    finish(job, report(found), wanted, draw=lambda: panel_grid(panels(found)))
