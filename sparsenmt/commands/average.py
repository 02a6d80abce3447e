"""``sparsenmt average``: the mean of a run's checkpoints as a model."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.errors import UserError


@click.command("average", short_help="Average checkpoints into one model.")
@click.argument("model", metavar="MODEL_DIR", type=click.Path(path_type=Path))
@click.option("--last", type=click.IntRange(1), help="Take the newest N checkpoints.  [default: all]")
@click.option(
    "--update", "updates", type=int, multiple=True, help="Take the checkpoint of this update; may be repeated."
)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Model directory to make.  [default: MODEL_DIR]")
def command(model: Path, last: int | None, updates: tuple[int, ...], output: Path | None) -> None:
    """Average the weights of checkpoints of the run in MODEL_DIR (Vaswani et al. 2017, 6.1).

    Without --output, MODEL_DIR's weights.safetensors is replaced by the mean; its checkpoints stay, so that another
    mean can be taken later. With --output, a new model directory gets the mean, and MODEL_DIR is left as it is.
    """
    from sparsenmt import store
    from sparsenmt.training.checkpoints import average_weights, find_checkpoints

    store.read_manifest(model)
    target = None if output is None or output.resolve() == model.resolve() else output
    if target is not None:
        store.check_absent(target)
    found = find_checkpoints(model)
    if not found:
        raise UserError("the model has no checkpoints", where=str(model), hint="Only the directory of a run has them.")
    if last is not None and updates:
        raise UserError("--last and --update exclude each other", where="--last", hint="Give one of them.")
    have = {checkpoint.update: checkpoint for checkpoint in found}
    if missing := [update for update in updates if update not in have]:
        raise UserError(
            f"there is no checkpoint of update {missing[0]}",
            where=str(model),
            hint=f"There are: {', '.join(str(update) for update in have)}.",
        )
    if last is not None and last > len(found):
        verb = "is" if len(found) == 1 else "are"
        raise UserError(f"there {verb} only {_count(len(found))}", where=str(model), hint="Lower --last.")
    chosen = [have[update] for update in sorted(set(updates))] or found[-(last or len(found)) :]
    weights = average_weights(chosen)
    after, made_of = found[-1].update, [checkpoint.update for checkpoint in chosen]
    if target is not None:
        store.copy_model(model, target, weights, after=after, made_of=made_of)
    else:
        store.write_weights(model, weights, after=after, made_of=made_of)
    plural = "" if len(chosen) == 1 else "s"
    names = ", ".join(str(checkpoint.update) for checkpoint in chosen)
    click.echo(
        f"{(target or model) / store.WEIGHTS}: the mean of {_count(len(chosen))}, update{plural} {names}", err=True
    )


def _count(checkpoints: int) -> str:
    return f"{checkpoints} checkpoint{'' if checkpoints == 1 else 's'}"
