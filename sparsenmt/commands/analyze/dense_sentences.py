"""``sparsenmt analyze dense-sentences``: sentences on which a sparse head is unusually dense for their length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.commands.attending import SITES, attend, read_along

if TYPE_CHECKING:
    from sparsenmt.model.sites import SiteName


@click.command("dense-sentences", short_help="Sentences on which sparse heads are unusually dense.")
@click.option(
    "--site",
    type=click.Choice(SITES),
    default="encoder_self",
    show_default=True,
    help="Attention site of the heads.",
)
@click.option(
    "--sparse",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Mean density under which a head is sparse.",
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="How many are listed.")
@analysis_options(translates=True, targets=True)
def command(job: AnalysisRequest, site: SiteName, sparse: float, top: int) -> None:
    """Sentences on which a sparse head gives weight to unusually many positions for the length of the sentence.

    A sentence is compared with the others whose lengths differ by at most a tenth, or by 1, if there are ten of them.

    \b
    density   of the head on the sentence, see `analyze density`
    expected  the mean on sentences of similar length
    excess    the difference in standard deviations, which count as at least 0.01
    """
    text = job.read()

    from dataclasses import replace

    import numpy as np

    from sparsenmt.analysis.alphas import learned_alphas
    from sparsenmt.analysis.unusual import DensityRecorder, find, panels, report
    from sparsenmt.report.plots import panel_grid

    found, texts, numbers = [], [], []
    for label, bundle in job.opened():
        sources, outputs = read_along(job, label, bundle, text, [site])
        recorder = DensityRecorder(len(sources))
        attend(job, label, bundle, sources, outputs, [recorder], [site])
        own = site == "decoder_self" and outputs is not None
        lengths = [len(each.ids) for each in (outputs or ())] if own else [len(each.ids) for each in sources]
        alphas = learned_alphas(bundle.model)
        sizes = np.array(lengths, dtype=np.int64)
        found.append(find(label, recorder.heads(), sizes, limit=sparse, top=top, alphas=alphas))
        texts.append([each.text for each in sources])
        numbers.append([each.number for each in sources])
    settings = {"site": site, "sparse": sparse, "top": top}
    made = replace(report(found, texts, numbers), settings=settings)
    job.finish(made, draw=lambda: panel_grid(panels(found)))
