"""``sparsenmt analyze entropy``: what kept and dropped positions look at in the last encoder layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.errors import UserError
from sparsenmt.progress import progress_bar

if TYPE_CHECKING:
    from sparsenmt.analysis.entropy import LineEntropy
    from sparsenmt.commands.analyzing import Text
    from sparsenmt.store import Bundle


@click.command("entropy", short_help="Entropy of self-attention, of kept and dropped positions.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="MODEL_DIR",
    help="Dense model with the same source vocabulary, to be split by the same gates.",
)
@analysis_options()
def command(job: AnalysisRequest, baseline: Path | None) -> None:
    """Entropy of the last encoder self-attention, of kept and of dropped positions.

    The heads are averaged, then the entropy of each position's weights is taken, in nats, and averaged over positions,
    </s> included. With --baseline, the same positions of a dense model stand beside.
    """
    notes = job.notes_on_gates(needed=True)
    text = job.read()

    from sparsenmt.analysis.entropy import measure, panels, report
    from sparsenmt.report.plots import curves
    from sparsenmt.store import open_model

    dense = None
    name = None
    if baseline is not None:
        name = baseline.resolve().name
        dense = _entropies(job, name, open_model(baseline), text)
    found = []
    for label, bundle in job.opened():
        own = _entropies(job, label, bundle, text)
        if dense is not None and [each.source.line.ids for each in dense] != [each.source.line.ids for each in own]:
            raise UserError(
                f"its pieces of the text are not those of {label}",
                where=str(baseline),
                hint="Name the dense model that the gated one was made from, or one with its tokenizer.",
            )
        found.append(measure(label, own, dense))
    made = replace(report(found), notes=tuple(notes), settings={"baseline": name})
    job.finish(made, draw=lambda: curves(panels(found, name)))


def _entropies(job: AnalysisRequest, label: str, bundle: Bundle, text: Text) -> list[LineEntropy]:
    from sparsenmt.analysis.entropy import line_entropies

    sources = job.sources(bundle, text)
    with progress_bar(f"{label}: entropy", len(sources)) as advance:
        return line_entropies(bundle, sources, batch_tokens=job.batch_limit(bundle), advance=advance)
