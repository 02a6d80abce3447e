"""``sparsenmt analyze entropy``: the attention entropy of kept and dropped positions in the last encoder layer."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options
from sparsenmt.commands.options import PATH


@click.command("entropy")
@click.option(
    "--baseline",
    type=PATH,
    metavar="MODEL_DIR",
    help="Dense model with the same source vocabulary, whose positions are split by the same gates.",
)
@analysis_options()
def command(arguments: AnalysisArguments, baseline: Path | None) -> None:
    """Entropy of the last encoder self-attention, of kept and of dropped positions.

    The heads are averaged, then the entropy of each position's weights is taken, in nats, and averaged over positions,
    </s> included. With --baseline, the same positions of a dense model stand beside.
    """
    from sparsenmt.analysis.entropy import measure_entropy

    arguments.show(measure_entropy, baseline=baseline)
