"""``sparsenmt analyze diversity``: how much the heads of a layer disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.commands.attending import SITES, each_attended, finish, sites_option

if TYPE_CHECKING:
    from sparsenmt.model.sites import SiteName


@click.command("diversity", short_help="Jensen-Shannon divergence between heads.")
@sites_option
@analysis_options(translates=True, targets=True)
def command(job: AnalysisRequest, sites: tuple[SiteName, ...]) -> None:
    """Jensen-Shannon divergence between the heads of every layer: the higher, the more they look at other things.

    Entropies are to the base of the number of visible positions, so that it is at most 1; queries that see one position
    are skipped; the mean is over all queries. Decoders read the model's own translations, or those of --target.
    """
    text = job.read()
    wanted = sites or SITES

    from sparsenmt.analysis.diversity import DivergenceCounter, panels, report
    from sparsenmt.report.plots import curves

    attended = each_attended(job, text, DivergenceCounter, wanted)
    found = [counter.found(label) for label, _, counter in attended]
    finish(job, report(found), wanted, draw=lambda: curves(panels(found)))
