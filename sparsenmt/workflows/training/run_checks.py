"""The checks of a run before anything is written: its directory, its recipe, its prepared data, its vocabularies."""

from __future__ import annotations

import filecmp
import json
import math
import re
from pathlib import Path
from typing import Any

import torch

from sparsenmt import __version__
from sparsenmt.assemble import model_directory
from sparsenmt.data.prepared_data import PreparedData
from sparsenmt.data.tokenizers.tokenizer import LAYOUT, SHORTLIST
from sparsenmt.errors import UserError
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import Recipe
from sparsenmt.storage.kept_work import changed_values, describe_change
from sparsenmt.training.precision import pick_dtype
from sparsenmt.training.state import Progress

# Keys that may change without making another run: paths (the fingerprint identifies the data), what is logged and
# kept, and the number of updates that may be skipped because they are not finite. Also the rule that the fingerprint's
# vocabularies were learned with: its default was another one in earlier versions, for some languages.
_HARMLESS = re.compile(
    r"name|directory|license|data\.(directory|test.*|source_language|tokenizer\.normalization|(train\[\d+\]|dev)\.(source|target|documents|alignments))"
    r"|training\.(log_every|save_every|keep_last|keep_best|average_last|choose_average|skip_nonfinite|trackers(\[\d+\])?)"
)
_TOKENIZER = "training.validation.tokenize"
"""`validation_scoring` compares it with what the run was validated by, which the recipe need not name."""
_OF_MACHINE = re.compile(
    r"recipe\.(directory|data\.(directory|(train\[\d+\]|dev|test.*)\.(source|target|text|tags|documents|alignments))"
    r"|training\.threads)"
)
"""Keys that may differ between the machines of a run."""
_GPU_BATCH = 25_000
"""Tokens of a training batch on a GPU by default (Vaswani et al. 2017, 5.1): with few it waits for Python."""
_LIMITS = ("training.max_updates", "training.max_epochs", "training.max_hours", "training.validation.patience")


def with_batch_size(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe with the size of its training batches: that of the begun run, or the default of the device.

    A recipe that names a size keeps it.
    """
    training, directory = recipe.training, Path(recipe.directory)
    if "batch_tokens" in training.model_fields_set:
        return recipe
    size = training.batch_tokens
    if (directory / model_directory.MANIFEST).exists():
        size = model_directory.read_recipe(directory).training.batch_tokens
    elif device.type == "cuda":
        size = min(_GPU_BATCH, training.accumulate_tokens or _GPU_BATCH)
    return recipe.model_copy(update={"training": training.model_copy(update={"batch_tokens": size})})


def check_start(
    directory: Path, recipe: Recipe, fingerprint: str, start_from: str | None, done: Progress | None
) -> list[tuple[str, Any, Any]]:
    """Check that a model directory may be written to: it is new, or belongs to this run.

    Args:
        start_from: hash of the weights that --from names.
        done: progress of the newest checkpoint, which the run resumes from; None: there is none.

    Returns:
        key, old and new value of what the recipe changes without making another run.

    Raises:
        UserError: the directory belongs to other data, another recipe or other weights, or is no model directory.
    """
    if not (directory / model_directory.MANIFEST).exists():
        if directory.exists() and not directory.is_dir():
            raise UserError("this is a file", where=str(directory), hint="Name another `directory`.")
        if directory.exists() and not model_directory.is_unfinished(directory):
            raise UserError(
                "the model directory exists and holds something else",
                where=str(directory),
                hint="Name another `directory`, or empty this one.",
            )
        return []
    manifest = model_directory.read_manifest(directory)
    if manifest["data_fingerprint"] != fingerprint:
        raise UserError(
            "the model directory belongs to other prepared data",
            where=str(directory),
            hint="Name another `directory`, or prepare the data as before.",
        )
    _check_starting_weights(directory, manifest["started_from"], start_from, done is not None)
    changed = _changes(model_directory.read_recipe(directory), recipe)
    if others := [change for change in changed if not _is_harmless(*change, recipe, done)]:
        raise UserError(
            "the model directory belongs to a run with another recipe: "
            + "; ".join(describe_change(*change) for change in others),
            where=str(directory),
            hint="Name another `directory`; or give the recipe and overrides that the run began with, to resume it."
            + _least_limits(others, done),
        )
    if done is None and (directory / model_directory.WEIGHTS).exists():
        raise UserError(
            "the model directory holds a model without checkpoints, which training would replace",
            where=str(directory),
            hint="Name another `directory`; use --from to start from the weights of a model.",
        )
    return changed


def _check_starting_weights(
    directory: Path, recorded: dict[str, str] | None, start_from: str | None, resumes: bool
) -> None:
    """Raise UserError if a run would resume with other starting weights than it began with.

    Args:
        recorded: `StartingPoint.record` in the manifest; None: the run began with random weights.
        start_from: hash of the weights that --from names.
        resumes: True if there are checkpoints.
    """
    other = "or name another `directory`."
    resume = f"Leave --from out to resume it, {other}"
    if recorded is None:
        if start_from is not None and resumes:
            problem = "the run began without --from, and has checkpoints to resume from"
            raise UserError(problem, where=str(directory), hint=resume)
        return
    began = f"the run began from the weights of {recorded['path']}"
    if start_from is None and not resumes:
        hint = f"Give --from {recorded['path']} again, {other}"
        raise UserError(f"{began}, and has no checkpoints yet", where=str(directory), hint=hint)
    if start_from is not None and start_from != recorded["sha256"]:
        raise UserError(f"{began} as they were then, not from these", where=str(directory), hint=resume)


def _changes(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """Return key, old and new value of the settings that differ; keys are joined by dots."""
    before, after = (recipe.model_dump(mode="json", by_alias=True) for recipe in (old, new))
    return changed_values(before, after)


def check_same_run(
    recipe: Recipe, fingerprint: str, start_from: str | None, workers: Workers, device: torch.device
) -> None:
    """Raise UserError unless all processes were started with the same version, recipe, data and starting weights."""
    if workers.size == 1:
        return
    dtype = str(pick_dtype(recipe.training.compute_dtype, device))
    own = {
        "recipe": recipe.model_dump(mode="json", by_alias=True),
        "version": __version__,
        "prepared data": fingerprint,
        "starting weights": start_from,
        "training.compute_dtype": dtype,
    }
    first, *others = map(json.loads, workers.gather_text(json.dumps(own), device))
    for rank, other in enumerate(others, start=1):
        changed = [change for change in changed_values(first, other) if not _OF_MACHINE.fullmatch(change[0])]
        if changed:
            names = ", ".join(key.removeprefix("recipe.") for key, _, _ in changed[:3])
            raise UserError(
                f"process {rank} has another {names} than process 0",
                where=f"{workers.size} processes",
                hint="Start all of them with the same command, recipe, prepared data and version of the program.",
            )


def is_same_run(old: Recipe, new: Recipe) -> bool:
    """Return True if the new recipe describes the same finished run, on whatever device and threads it was made."""
    other = ("training.threads", "training.device")
    return all(key in other or _HARMLESS.fullmatch(key) for key, _, _ in _changes(old, new))


def _least_limits(changed: list[tuple[str, Any, Any]], done: Progress | None) -> str:
    """Return a sentence about the limits that the run has passed; empty if it has passed none."""
    passed = [(key, None if done is None else _reached(key, done), old, new) for key, old, new in changed]
    least = [f"{key}={most}" for key, most, old, new in passed if most and old and new and new < min(most, old)]
    return f" To end it where it is, write {' '.join(least)}." if least else ""


def _reached(key: str, done: Progress) -> float | None:
    """Return the least value of a limit at which the run ends only now or later; None for other keys."""
    epochs, hours = done.epoch + (done.batches_done > 0), math.ceil(done.elapsed / 36) / 100
    reached = {"training.max_updates": done.update, "training.max_epochs": epochs, "training.max_hours": hours}
    return reached.get(key)


def _is_harmless(key: str, old: Any, new: Any, recipe: Recipe, done: Progress | None) -> bool:
    """Return True if a resumed run with the change equals an uninterrupted run that had it from its start."""
    if _HARMLESS.fullmatch(key) or key == _TOKENIZER:
        return True
    if key not in _LIMITS or (key == "training.max_updates" and recipe.training.falls_to_zero):
        return False  # the schedule falls to the last update: with another one, earlier rates were others
    if new is None or (old is not None and new > old):
        return True
    reached = None if done is None else _reached(key, done)  # patience: an earlier validation may have reached it
    return reached is not None and new >= reached


def check_lengths(recipe: Recipe, data: PreparedData) -> None:
    """Raise UserError for sentences longer than the learned positions, and languages that the vocabularies lack."""
    frames = data.tokenizers.frames.of(recipe.decoding)
    if recipe.model.positions != "learned":
        return
    for dataset in (*data.train, data.dev):
        sides = (dataset.source_lengths, frames.source.size), (dataset.target_lengths, frames.target.size)
        longest = max(int(lengths.max(initial=0)) + more for lengths, more in sides)
        if longest > recipe.model.max_positions:
            raise UserError(
                f"the longest sentence of {dataset.name} has {longest} tokens, but there are only "
                f"{recipe.model.max_positions} learned positions",
                where="model.max_positions",
                hint="Raise it, lower data.filters.max_length, or use sinusoidal positions.",
            )


def same_vocabularies(prepared: Path, model: Path) -> bool:
    """Return True if the tokenizer files of prepared data and of a model are identical."""
    old, new = model / "tokenizers", prepared / "tokenizers"
    names, others = (sorted({path.name for path in folder.glob("*")} - {SHORTLIST, LAYOUT}) for folder in (new, old))
    if names != others:
        return False
    _, different, unreadable = filecmp.cmpfiles(old, new, names, shallow=False)
    return not different and not unreadable
