"""``sparsenmt analyze spans``: the spans that heads have learned, and the quality that they were reached at."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options


@click.command("spans")
@click.option(
    "--level",
    "levels",
    type=float,
    multiple=True,
    help="Tell the mean span when validation first reached this quality, such as 1.4 bits per character; repeatable.  "
    "[default: round values that the models reached]",
)
@analysis_options(text=False)
def command(arguments: AnalysisArguments, levels: tuple[float, ...]) -> None:
    """Attention spans that heads have learned (span `adaptive_span`), ramp included.

    \b
    mean, longest   over the heads of a layer
    span            mean of all heads when a quality in validation was first reached; the log
                    (metrics.jsonl) has the spans every `training.log_every` updates
    """
    from sparsenmt.analysis.spans import measure_spans

    arguments.show(measure_spans, levels=levels)
