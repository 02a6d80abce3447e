"""``sparsenmt analyze layers``: what each filter of a model drops."""

from __future__ import annotations

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.progress import progress_bar


@click.command("layers", short_help="Rates of every filter, by encoder layer.")
@analysis_options()
def command(job: AnalysisRequest) -> None:
    """What every filter drops, by the encoder layer after which it stands.

    \b
    sparsity  share of source positions, </s> included, whose gate is exactly 0, or that
              an earlier filter has masked away
    partial   share whose gate is neither 0 nor 1
    open      share whose gate is exactly 1
    """
    notes = job.notes_on_gates(needed=True)
    text = job.read()

    from dataclasses import replace

    from sparsenmt.analysis.gates import encoded_batches
    from sparsenmt.analysis.layers import GateCounter, LayerResult, panels, report
    from sparsenmt.report.plots import curves

    found = []
    for label, bundle in job.opened():
        sources = job.sources(bundle, text)
        counter = GateCounter()
        with progress_bar(f"{label}: gates", len(sources)) as advance, bundle.model.listen_to_gates(counter):
            for _ in encoded_batches(bundle, sources, batch_tokens=job.batch_limit(bundle), advance=advance):
                pass
        shares = counter.shares(sum(len(line.ids) for line in sources))
        found.append(LayerResult(label, shares))
    job.finish(replace(report(found), notes=tuple(notes)), draw=lambda: curves(panels(found)))
