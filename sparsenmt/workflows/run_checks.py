"""What `sparsenmt train` looks at before it writes anything."""

from __future__ import annotations

import filecmp
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.data.prepared_data import PreparedData
    from sparsenmt.recipe.schema import Recipe

# Changes that make no other run. Where things lie: the fingerprint of the data vouches for what they are. What is
# reported and kept. How much may be left out as not finite.
_HARMLESS = re.compile(
    r"name|directory|data\.(directory|test.*|source_language|(train\[\d+\]|dev)\.(source|target|documents))"
    r"|training\.(log_every|save_every|keep_last|keep_best|average_last|skip_nonfinite)"
)
LONGER = ("training.max_updates", "training.max_epochs", "training.validation.patience")


def check_start(
    directory: Path, recipe: Recipe, fingerprint: str, start_from: str | None, resumes: bool
) -> list[tuple[str, Any, Any]]:
    """Refuse to mix runs: other data, another recipe, other weights in a directory that is in use.

    Args:
        start_from: hash of the weights that --from names.
        resumes: there are checkpoints to go on from.

    Returns:
        key, old and new value of what was changed in the recipe without making another run.
    """
    from sparsenmt import store

    if not (directory / store.MANIFEST).exists():
        if directory.exists() and not directory.is_dir():
            raise UserError("this is a file", where=str(directory), hint="Name another `directory`.")
        if directory.exists() and not store.is_unfinished(directory):
            raise UserError(
                "the model directory exists and holds something else",
                where=str(directory),
                hint="Name another `directory`, or empty this one.",
            )
        return []
    manifest = store.read_manifest(directory)
    if manifest["data_fingerprint"] != fingerprint:
        raise UserError(
            "the model directory belongs to other prepared data",
            where=str(directory),
            hint="Name another `directory`, or prepare the data as they were.",
        )
    _check_origin(directory, manifest["started_from"], start_from, resumes)
    changed = _changes(store.read_recipe(directory), recipe)
    if others := [change for change in changed if not _is_harmless(*change, recipe)]:
        from sparsenmt.files import describe_change

        raise UserError(
            "the model directory belongs to a run with another recipe: "
            + "; ".join(describe_change(*change) for change in others),
            where=str(directory),
            hint="Name another `directory`, or give the recipe and the overrides that the run began with, to go on.",
        )
    if not resumes and (directory / store.WEIGHTS).exists():
        raise UserError(
            "the model directory holds a model without checkpoints, which training would replace",
            where=str(directory),
            hint="Name another `directory`; --from starts from the weights of a model.",
        )
    return changed


def _check_origin(directory: Path, recorded: dict[str, str] | None, start_from: str | None, resumes: bool) -> None:
    """A run goes on as what it began as."""
    if recorded is None:
        if start_from is not None and resumes:
            raise UserError(
                "the run began without --from, and has checkpoints to go on from",
                where=str(directory),
                hint="Leave --from out to go on, or name another `directory`.",
            )
        return
    if start_from is None and not resumes:
        raise UserError(
            f"the run began from the weights of {recorded['path']}, and has no checkpoints yet",
            where=str(directory),
            hint=f"Give --from {recorded['path']} again, or name another `directory`.",
        )
    if start_from is not None and start_from != recorded["sha256"]:
        raise UserError(
            f"the run began from the weights of {recorded['path']} as they were then, not from these",
            where=str(directory),
            hint="Leave --from out to go on, or name another `directory`.",
        )


def _changes(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """The keys that differ, with both values."""
    from sparsenmt.files import changed_values

    def plain(recipe: Recipe) -> Any:
        return recipe.model_dump(mode="json", by_alias=True)

    return changed_values(plain(old), plain(new))


def is_same_run(old: Recipe, new: Recipe) -> bool:
    """Whether a finished run would be no other one with the new recipe."""
    return all(_HARMLESS.fullmatch(key) for key, _, _ in _changes(old, new))


def _is_harmless(key: str, old: Any, new: Any, recipe: Recipe) -> bool:
    """Whether a run that goes on with the change is the one that it would have been from its start."""
    if _HARMLESS.fullmatch(key):
        return True
    if key not in LONGER or (key == "training.max_updates" and recipe.training.schedule == "linear"):
        return False  # a linear schedule falls to the last update: another one is another schedule
    return new is None or (old is not None and new > old)


def check_lengths(recipe: Recipe, data: PreparedData) -> None:
    """Refuse sentences that learned positions do not reach."""
    if recipe.model.positions != "learned":
        return
    for dataset in (*data.train, data.dev):
        longest = max(int(dataset.source_lengths.max(initial=0)), int(dataset.target_lengths.max(initial=0)))
        if longest > recipe.model.max_positions:
            raise UserError(
                f"the longest sentence of {dataset.name} has {longest} pieces, but there are only "
                f"{recipe.model.max_positions} learned positions",
                where="model.max_positions",
                hint="Raise it, lower data.filters.max_length, or take sinusoidal positions.",
            )


def same_vocabularies(prepared: Path, model: Path) -> bool:
    """Whether the tokenizers of prepared data and of a model are the same files."""
    old, new = model / "tokenizers", prepared / "tokenizers"
    names = sorted(path.name for path in new.glob("*"))
    if names != sorted(path.name for path in old.glob("*")):
        return False
    _, different, unreadable = filecmp.cmpfiles(old, new, names, shallow=False)
    return not different and not unreadable
