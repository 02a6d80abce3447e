"""``sparsenmt analyze annotate``: sentences with their dropped words marked."""

from __future__ import annotations

import os
import sys

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options


@click.command("annotate", short_help="Sentences with kept and dropped words marked.")
@click.option("--color/--no-color", default=None, help="Colours or brackets.  [default: colours at a terminal]")
@analysis_options(sentences=True)
def command(job: AnalysisRequest, color: bool | None) -> None:
    """Sentences with kept and dropped words marked, and the sparsity rate of each.

    At a terminal, kept words are green and dropped ones red; otherwise, and where NO_COLOR is set, dropped ones stand
    in [brackets]. A dropped space that is a symbol of its own shows as the sign for it.
    """
    notes = job.notes_on_gates(needed=False)
    given = job.read()
    job.check_few(given)

    from dataclasses import replace

    from sparsenmt.analysis.annotate import AnnotationResult, brackets, grid, report, text
    from sparsenmt.report.plots import heatmaps

    found = []
    for label, bundle in job.opened():
        found.append(AnnotationResult(label, bundle.tokenizers.source, job.gates(label, bundle, given)))
    coloured = (sys.stdout.isatty() and not os.environ.get("NO_COLOR")) if color is None else color
    shown = text(found, _paint if coloured else brackets)
    made = replace(report(found), notes=tuple(notes))
    job.finish(made, draw=lambda: heatmaps(grid(found)), text=shown, color=coloured)


def _paint(text: str, dropped: bool) -> str:
    return click.style(text, fg="red" if dropped else "green")
