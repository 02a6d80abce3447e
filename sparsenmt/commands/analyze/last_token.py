"""``sparsenmt analyze last-token``: how much of cross-attention rests on the end of the source."""

from __future__ import annotations

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.commands.attending import attend, read_along
from sparsenmt.progress import progress_bar


@click.command("last-token", short_help="Cross-attention mass on the last source token.")
@analysis_options(translates=True, targets=True)
def command(job: AnalysisRequest) -> None:
    """Cross-attention mass on the last source token, </s>, by decoder layer; mean over heads and target positions.

    Decoders read the model's own translations, or those of --target. What a filter has closed gets nothing.

    \b
    last         mass on </s>
    before last  mass on the piece before it
    even         what </s> would get if all visible positions got the same
    largest      heads at target positions where no token gets more than </s>
    """
    notes = job.notes_on_gates(needed=False)
    text = job.read()

    from dataclasses import replace

    from sparsenmt.analysis.gates import gated_lines
    from sparsenmt.analysis.last_token import LastTokenCounter, panels, report
    from sparsenmt.report.plots import curves

    found = []
    for label, bundle in job.opened():
        sources, outputs = read_along(job, label, bundle, text, ["cross"])
        with progress_bar(f"{label}: gates", len(sources)) as advance:
            lines = gated_lines(bundle, sources, batch_tokens=job.batch_limit(bundle), advance=advance)
        counter = LastTokenCounter(lines)
        attend(job, label, bundle, sources, outputs, [counter], ["cross"])
        found.append(counter.found(label))
    made = report(found)
    told = notes if len(notes) < len(job.models) else []  # only of interest beside a model that drops something
    settings = {"target": str(job.target_file) if job.target_file else None}
    job.finish(replace(made, notes=(*made.notes, *told), settings=settings), draw=lambda: curves(panels(found)))
