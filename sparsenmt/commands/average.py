"""``sparsenmt average``: the mean of a run's checkpoints as a model."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.commands.options import PATH


@click.command("average")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.option("--last", type=click.IntRange(1), help="Number of newest checkpoints to average.  [default: all]")
@click.option("--update", "updates", type=int, multiple=True, help="Update of a checkpoint to average; repeatable.")
@click.option("--output", "-o", type=PATH, help="Model directory to write.  [default: MODEL_DIR]")
def command(model: Path, last: int | None, updates: tuple[int, ...], output: Path | None) -> None:
    """Average the weights of checkpoints of the run in MODEL_DIR (Vaswani et al. 2017, 6.1).

    Without --output, the mean replaces weights.safetensors of MODEL_DIR; its checkpoints stay, so that another mean can
    be taken later. With --output, a new model directory gets the mean, and MODEL_DIR does not change.
    """
    from sparsenmt.workflows.average import average

    average(model, last=last, updates=updates, output=output)
