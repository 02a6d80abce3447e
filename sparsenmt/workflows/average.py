"""Average the checkpoints of a run into the weights of a model (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsenmt import store
from sparsenmt.errors import UserError
from sparsenmt.files import check_absent
from sparsenmt.progress import notify
from sparsenmt.training.checkpoints import Checkpoint, average_weights, damaged_among, find_checkpoints


def average(model: Path, *, last: int | None = None, updates: Sequence[int] = (), output: Path | None = None) -> None:
    """Replace a model's weights by the mean of its checkpoints, or write the mean to a new model directory.

    Args:
        last: number of checkpoints, the newest ones; None: all.
        updates: updates of the checkpoints to average, instead of ``last``.
        output: the new model directory; None, or ``model`` itself: replace the weights of ``model``.

    Raises:
        UserError: there are no such checkpoints, or ``output`` exists.
    """
    store.read_manifest(model)
    version = store.model_version(model)
    target = None if output is None or output.resolve() == model.resolve() else output
    if target is not None:
        check_absent(target)
    found = find_checkpoints(model)
    chosen = _choose(model, found, last, updates)
    weights = average_weights(chosen)
    after, made_of = found[-1].update, [checkpoint.update for checkpoint in chosen]
    warnings = [] if updates else warn_of_damage(model, last or len(found))
    if target is not None:
        store.copy_model(model, target, weights, after=after, made_of=made_of, version=version, warnings=warnings)
    else:
        store.check_model_version(model, version)
        store.write_weights(model, weights, after=after, made_of=made_of, warnings=warnings)
    notify(f"{(target or model) / store.WEIGHTS}: {mean_of(chosen)}")


def _choose(model: Path, found: list[Checkpoint], last: int | None, updates: Sequence[int]) -> list[Checkpoint]:
    """Return the checkpoints to average, oldest first."""
    if not found:
        raise UserError("the model has no checkpoints", where=str(model), hint="Name the directory of a training run.")
    if last is not None and updates:
        raise UserError("--last and --update exclude each other", where="--last", hint="Give one of them.")
    have = {checkpoint.update: checkpoint for checkpoint in found}
    if missing := [update for update in updates if update not in have]:
        raise UserError(
            f"there is no checkpoint of update {missing[0]}",
            where=str(model),
            hint=f"There are: {', '.join(map(str, have))}.",
        )
    if last is not None and last > len(found):
        verb = "is" if len(found) == 1 else "are"
        raise UserError(f"there {verb} only {_count(found)}", where=str(model), hint="Lower --last.")
    return [have[update] for update in sorted(set(updates))] or found[-(last or len(found)) :]


def mean_of(checkpoints: Sequence[Checkpoint]) -> str:
    """Return which checkpoints were averaged, for a message."""
    plural = "" if len(checkpoints) == 1 else "s"
    return f"the mean of {_count(checkpoints)}, update{plural} {', '.join(str(each.update) for each in checkpoints)}"


def warn_of_damage(model: Path, last: int) -> list[str]:
    """Warn of damaged checkpoints that are missing from a mean of the newest ones; returns the warnings."""
    warnings = [f"the checkpoint of update {n} is damaged: the mean is without it" for n in damaged_among(model, last)]
    for warning in warnings:
        notify(f"warning: {model}: {warning}")
    return warnings


def _count(checkpoints: Sequence[Checkpoint]) -> str:
    return f"{len(checkpoints)} checkpoint{'' if len(checkpoints) == 1 else 's'}"
