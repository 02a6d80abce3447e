"""``sparsenmt finetune-l0``: a trained model learns which encoder outputs its decoder can do without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import (
    PATH,
    evaluation_options,
    numbers,
    parsed,
    trained_and_run,
    training_processor_options,
)
from sparsenmt.commands.output import show_written


@click.command("finetune-l0")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.argument("recipe_and_overrides", metavar="[RECIPE] [OVERRIDES]...", nargs=-1)
@click.option(
    "--weight",
    "weights",
    metavar="X[,Y...]",
    multiple=True,
    callback=parsed(numbers, most=math.inf, example="0.1,0.3"),
    help="Weight of the penalty (lambda), or several.",
)
@click.option(
    "--target",
    "targets",
    metavar="X[,Y...]",
    multiple=True,
    callback=parsed(numbers, most=1, above=True, example="0.3,0.5"),
    help="Share of gates to close, or several.",
)
@click.option("--updates", type=click.IntRange(0), help="Number of updates to train on; 0 only adds the filters.")
@click.option("--ramp", type=click.IntRange(0), help="Number of updates over which weight or target rise from 0.")
@click.option("--restart", is_flag=True, help="Begin with the model's final weights, without moments, at update 0.")
@click.option("--keep", type=click.Choice(["average", "last", "best"]), help="Weights of the finished model.")
@click.option("--baseline", is_flag=True, help="Also train on without gates, for comparison.")
@click.option("--output", "-o", type=PATH, help="Model directory to write, or the folder of several.")
@evaluation_options
@training_processor_options
def command(model: Path, recipe_and_overrides: tuple[str, ...], **options: Any) -> None:
    """Put L0Drop gates behind the encoder of the dense model in MODEL_DIR, and train on (Zhang et al. 2021, 4).

    RECIPE describes the filters and the training; its model must be that of MODEL_DIR with filters in it, rules too.
    Its max_updates and its schedules of weights count from the beginning of the fine-tuning. Without RECIPE the model's
    own is used, with l0drop at the encoder's output.

    Training continues from MODEL_DIR's newest checkpoint, with the optimizer's moments and the learning rate that the
    recipe's schedule has at that update, unless --restart is given. A linear or cosine schedule has ended there: then
    the rate is constant, as inverse_sqrt would have it, and at least a tenth of learning_rate.

    With lists of weights and targets, or with --baseline, every value gets a directory of its own below --output; a
    table and a plot of quality against sparsity (Fig. 4) are written beside them; --beam-size and --batch-tokens are
    those of that comparison. If it is interrupted, the same command resumes.

    \b
    --keep average  the mean of the last checkpoints, the recipe's `average_last`, or 5; with --target, validation
                    chooses how many, as `choose_average` says
    --keep last     the last checkpoint
    --keep best     the best validation within `tolerance` of the target
    """
    from sparsenmt.workflows.training.finetune import FinetuneRequest, finetune

    recipe, overrides = _split(recipe_and_overrides)
    changes, run = trained_and_run(options)
    result = finetune(FinetuneRequest(model, recipe, (*overrides, *changes), run=run, **options))
    if result.report is not None:
        show_written(str(result.report), result.files)


def _split(arguments: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Separate the recipe, which may be left out, from the overrides, which contain a ``=``."""
    if arguments and ("=" not in arguments[0] or Path(arguments[0]).is_file()):
        return Path(arguments[0]), tuple(arguments[1:])
    return None, tuple(arguments)
