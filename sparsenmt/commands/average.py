"""``sparsenmt average``: the mean of a run's checkpoints as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, parsed, training_processor_options, whole_numbers
from sparsenmt.commands.output import show


@click.command("average")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.option(
    "--last",
    metavar="K,K",
    callback=parsed(whole_numbers, example="1,2,4,8"),
    help="Number of newest checkpoints to average; of several numbers, validation chooses.  [default: all]",
)
@click.option("--update", "updates", type=int, multiple=True, help="Update of a checkpoint to average; repeatable.")
@click.option("--output", "-o", type=PATH, help="Model directory to write.  [default: MODEL_DIR]")
@training_processor_options
def command(model: Path, **options: Any) -> None:
    """Average the weights of checkpoints of the run in MODEL_DIR (Vaswani et al. 2017, 6.1).

    Without --output, the mean replaces weights.safetensors of MODEL_DIR; its checkpoints stay, so that another mean can
    be taken later. With --output, a new model directory gets the mean, and MODEL_DIR does not change.

    \b
    sparsenmt average runs/de-en --last 5          exactly the mean of the last 5
    sparsenmt average runs/de-en --last 1,2,4,8    the best of these means and of the best single checkpoint

    The choice is that at the end of training: each mean is validated on the prepared validation text, as the recipe in
    MODEL_DIR says, and the values are printed, and written to manifest.json.
    """
    from sparsenmt.workflows.training.average import average

    report = average(model, **options)
    if report is not None:
        show(str(report))
