"""``sparsenmt finetune-l0``: a trained model learns which encoder outputs its decoder can do without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from sparsenmt.errors import UserError
from sparsenmt.runtime import is_main_process


@click.command("finetune-l0", short_help="Add gates to a trained model and train on; sweeps.")
@click.argument("model", metavar="MODEL_DIR", type=click.Path(path_type=Path))
@click.argument("recipe_and_overrides", metavar="[RECIPE] [OVERRIDES]...", nargs=-1)
@click.option(
    "--weight", "weights", metavar="X[,Y...]", multiple=True, help="Weight of the penalty (lambda); or a list."
)
@click.option("--target", "targets", metavar="X[,Y...]", multiple=True, help="Share of gates to close; or a list.")
@click.option("--updates", type=click.IntRange(0), help="Updates to train on; 0 only adds the filters.")
@click.option("--ramp", type=click.IntRange(0), help="Updates over which weight or target rise from 0.")
@click.option("--restart", is_flag=True, help="Begin with the model's final weights, without moments, at update 0.")
@click.option("--keep", type=click.Choice(["average", "last", "best"]), help="Which weights become the model's.")
@click.option("--baseline", is_flag=True, help="Also train on without gates, for comparison.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Model directory, or, for a list, what holds them."
)
def command(
    model: Path,
    recipe_and_overrides: tuple[str, ...],
    weights: tuple[str, ...],
    targets: tuple[str, ...],
    updates: int | None,
    ramp: int | None,
    restart: bool,
    keep: str | None,
    baseline: bool,
    output: Path | None,
) -> None:
    """Put L0Drop gates behind the encoder of the dense model in MODEL_DIR, and train on (Zhang et al. 2021, 4).

    RECIPE says what the filters are and how to train; it may be any recipe whose model is that of MODEL_DIR with
    filters in it, rules too. Its max_updates and its schedules of weights count from the beginning of the fine-tuning.
    Without RECIPE the model's own is taken, with l0drop at the encoder's output.

    Training goes on from MODEL_DIR's newest checkpoint, with the optimizer's moments and the learning rate where they
    stood, unless --restart. With lists of weights and targets, or --baseline, every value gets a directory of its own
    below --output; a table and a plot of quality against sparsity (Fig. 4) stand beside them. A command that was
    interrupted goes on when it is started again.

    \b
    --keep average  the mean of the last checkpoints, the recipe's `average_last`, or 5
    --keep last     the last checkpoint
    --keep best     the best validation within `tolerance` of the target
    """
    from sparsenmt.interrupts import Interrupted
    from sparsenmt.workflows.finetune import FinetuneRequest, run

    plan = FinetuneRequest(
        model,
        *_recipe_of(recipe_and_overrides),
        weights=_numbers(weights, "--weight", _A_WEIGHT),
        targets=_numbers(targets, "--target", _A_TARGET),
        updates=updates,
        ramp=ramp,
        restart=restart,
        keep=keep,
        baseline=baseline,
        output=output,
    )
    try:
        run(plan)
    except Interrupted as interrupt:
        interrupt.resumable = is_main_process()
        raise


def _recipe_of(arguments: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """The recipe, which may be left out, and the overrides, which have a = in them."""
    if arguments and ("=" not in arguments[0] or Path(arguments[0]).is_file()):
        return Path(arguments[0]), tuple(arguments[1:])
    return None, tuple(arguments)


def _numbers(texts: Sequence[str], option: str, complaint: str) -> list[float]:
    """All numbers of an option that may be repeated, and may be a list with commas."""
    found: list[float] = []
    for text in ",".join(texts).split(",") if texts else []:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (0 <= value < float("inf") if complaint is _A_WEIGHT else 0 < value < 1):
            raise UserError(f"{complaint}, not {text.strip() or 'nothing'}", where=option, hint=_EXAMPLE)
        if value not in found:
            found.append(value)
    return found


_A_WEIGHT = "must be a number from 0 up"
_A_TARGET = "must be a share between 0 and 1"
_EXAMPLE = "For instance --weight 0.1,0.3 or --target 0.3,0.5."
