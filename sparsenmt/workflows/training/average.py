"""Average the checkpoints of a run into the weights of a model (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.model_card import write_model_card
from sparsenmt.data.text import StrPath
from sparsenmt.errors import UserError, check_lists
from sparsenmt.process.devices import pick_device, use_threads
from sparsenmt.process.progress import notify
from sparsenmt.report.tables import Report
from sparsenmt.storage.files import check_absent
from sparsenmt.training.checkpoints import Checkpoint, average_weights, find_checkpoints
from sparsenmt.workflows.training.checkpoint_choice import CheckpointChoice, choose, warn_of_damage
from sparsenmt.workflows.training.prepare import open_data
from sparsenmt.workflows.training.validation import make_validator, validation_scoring


def average(
    model: StrPath,
    *,
    last: int | Sequence[int] | None = None,
    updates: Sequence[int] = (),
    output: StrPath | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Report | None:
    """Replace a model's weights by the mean of its checkpoints, or write the mean to a new model directory.

    Args:
        last: number of checkpoints, the newest ones; None: all. Of several numbers, and of the best single checkpoint,
            the best on the validation text of the model's recipe is taken, which must be prepared.
        updates: updates of the checkpoints to average, instead of ``last``.
        threads, device: of validation; None: as in training.
        output: the new model directory; None, or ``model`` itself: replace the weights of ``model``.

    Returns:
        the means and their validations, if there was a choice.

    Raises:
        UserError: there are no such checkpoints, ``output`` exists, or the prepared data are missing or others.
    """
    check_lists(last=last, updates=updates)
    model, output = Path(model), None if output is None else Path(output)
    manifest = model_directory.read_manifest(model)
    version = model_directory.model_version(model)
    target = None if output is None or output.resolve() == model.resolve() else output
    if target is not None:
        check_absent(target)
    found = find_checkpoints(model)
    sizes = [last] if isinstance(last, int) else list(last or [len(found)])
    choice = CheckpointChoice.of(choose_checkpoints(model, found, sizes if last else [], updates))
    if len(sizes) > 1:
        choice = _validated(model, manifest["data_fingerprint"], found, sizes, threads, device)
    weights = average_weights(choice.taken.checkpoints)
    after, made_of, record = found[-1].update, choice.taken.updates, choice.record()
    warnings = [] if updates else warn_of_damage(model, max(sizes), choice.best)
    if target is not None:
        model_directory.copy_model(
            model, target, weights, after=after, made_of=made_of, version=version, warnings=warnings, average=record
        )
    else:
        model_directory.check_model_version(model, version)
        model_directory.write_weights(model, weights, after=after, made_of=made_of, warnings=warnings, average=record)
    write_model_card(target or model)
    notify(f"{(target or model) / model_directory.WEIGHTS}: {choice.describe()}")
    return choice.report() if len(sizes) > 1 else None


def choose_checkpoints(
    model: Path, found: list[Checkpoint], sizes: Sequence[int], updates: Sequence[int]
) -> list[Checkpoint]:
    """Return the checkpoints to average, oldest first.

    Args:
        found: all of the model.
        sizes: numbers of newest ones, of which the largest counts; empty: all.
        updates: those of the checkpoints, instead of ``sizes``.

    Raises:
        UserError: there are none, or not these.
    """
    if not found:
        raise UserError("the model has no checkpoints", where=str(model), hint="Name the directory of a training run.")
    if sizes and updates:
        raise UserError("--last and --update exclude each other", where="--last", hint="Give one of them.")
    have = {checkpoint.update: checkpoint for checkpoint in found}
    if missing := [update for update in updates if update not in have]:
        raise UserError(
            f"there is no checkpoint of update {missing[0]}",
            where=str(model),
            hint=f"There are: {', '.join(map(str, have))}.",
        )
    most = max(sizes, default=len(found))
    if most > len(found):
        count = "is only 1 checkpoint" if len(found) == 1 else f"are only {len(found)} checkpoints"
        raise UserError(f"there {count}", where=str(model), hint="Lower --last.")
    return [have[update] for update in sorted(set(updates))] or found[-most:]


def _validated(
    model: Path,
    fingerprint: str,
    found: list[Checkpoint],
    sizes: Sequence[int],
    threads: int | None,
    device: str | None,
) -> CheckpointChoice:
    """Return the choice by validation, as the model's recipe validates.

    Args:
        fingerprint: of the data that the model was trained on.
        found: all checkpoints, oldest first.
        sizes: numbers of the newest ones whose means are tried.
    """
    recipe = model_directory.read_recipe(model)
    use_threads(threads or recipe.training.threads)
    computes = pick_device(device or recipe.training.device, "--device" if device else "training.device")
    data = open_data(recipe)
    if data.fingerprint != fingerprint:
        raise UserError(
            "other data than the model was trained on",
            where=recipe.data.directory,
            hint="Prepare the data as before, or give a single number of checkpoints.",
        )
    newest = found[-1]
    newest.check("progress.json")
    progress = newest.progress()
    validate = make_validator(recipe, data, computes, validation_scoring(recipe, data, progress))
    return choose(found, sizes, progress.validated, recipe, validate, tokenizer=progress.tokenizer)
