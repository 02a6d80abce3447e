"""``sparsenmt analyze alphas``: the entmax alphas that attention heads have learned, and their course over training."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options


@click.command("alphas", short_help="Learned alphas of entmax, and their course over training.")
@analysis_options(text=False)
def command(arguments: AnalysisArguments) -> None:
    """Alphas that attention heads have learned (transform `entmax` with `alpha: learned`): 1 is softmax, 2 sparsemax.

    The course over training is read from the checkpoints that a model directory still has; `training.keep_last` is the
    number that is kept. Without final weights, the alphas are those of the newest checkpoint.
    """
    from sparsenmt.analysis.alphas import measure_alphas

    arguments.show(measure_alphas)
