"""``sparsenmt analyze layers``: the rates of each filter of a model."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options


@click.command("layers")
@analysis_options()
def command(arguments: AnalysisArguments) -> None:
    """Rates of every filter, by the encoder layer after which it stands.

    \b
    sparsity  share of source positions, </s> included, whose gate is exactly 0, or that
              an earlier filter has masked
    partial   share whose gate is neither 0 nor 1
    open      share whose gate is exactly 1
    """
    from sparsenmt.analysis.filter_rates import measure_filter_rates

    arguments.show(measure_filter_rates)
