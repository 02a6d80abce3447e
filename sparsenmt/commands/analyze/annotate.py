"""``sparsenmt analyze annotate``: sentences with their dropped words marked."""

from __future__ import annotations

import os
import sys

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options
from sparsenmt.process.progress import is_terminal


@click.command("annotate")
@click.option("--color/--no-color", default=None, help="Colours or brackets.  [default: colours at a terminal]")
@analysis_options(sentences=True)
def command(arguments: AnalysisArguments, color: bool | None) -> None:
    """Sentences with kept and dropped words marked, and the sparsity rate of each.

    At a terminal, kept words are green and dropped ones red; otherwise, and where NO_COLOR is set, dropped ones stand
    in [brackets]. A dropped space that is a token of its own is shown as the sign for it.
    """
    from sparsenmt.analysis.annotate import brackets, measure_annotations

    coloured = (is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")) if color is None else color

    def paint(text: str, dropped: bool) -> str:
        return click.style(text, fg="red" if dropped else "green") if coloured else brackets(text, dropped)

    arguments.show(measure_annotations, paint=paint)
