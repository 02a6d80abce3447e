"""``sparsenmt analyze density``: how many of the keys that it may see an attention head gives weight to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import Job, analysis_options
from sparsenmt.commands.attending import SITES, attend, read_along, sites_option

if TYPE_CHECKING:
    from sparsenmt.model.interfaces import SiteName


@click.command("density", short_help="Share of visible positions that heads give weight to.")
@sites_option
@analysis_options(translates=True, targets=True)
def command(job: Job, sites: tuple[SiteName, ...]) -> None:
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

    from dataclasses import replace

    from sparsenmt.analysis.alphas import learned_alphas
    from sparsenmt.analysis.density import DensityCounter, panels, report
    from sparsenmt.analysis.plots import panel_grid

    found = []
    for label, bundle in job.opened():
        counter = DensityCounter()
        sources, outputs = read_along(job, label, bundle, text, wanted)
        attend(job, label, bundle, sources, outputs, [counter], wanted)
        found.append(counter.found(label, learned_alphas(bundle.model)))
    settings = {"sites": list(wanted), "target": str(job.target_file) if job.target_file else None}
    job.finish(replace(report(found), settings=settings), draw=lambda: panel_grid(panels(found)))
