"""What `sparsenmt train` looks at before it writes anything."""

from __future__ import annotations

import filecmp
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.data.prepared import PreparedData
    from sparsenmt.recipe.schema import Recipe

# Where things lie does not make another run: the fingerprint of the data vouches for what they are.
_PLACES = re.compile(r"(directory|data\.(directory|(train\[\d+\]|dev|test)\.(source|target))) is .*", re.DOTALL)


def check_start(directory: Path, recipe: Recipe, fingerprint: str, start_from: Path | None, resumes: bool) -> None:
    """Refuse to mix runs: other data, another recipe, other weights in a directory that is in use.

    Args:
        resumes: there are checkpoints to go on from.
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
        return
    if store.read_manifest(directory)["data_fingerprint"] != fingerprint:
        raise UserError(
            "the model directory belongs to other prepared data",
            where=str(directory),
            hint="Name another `directory`, or prepare the data as they were.",
        )
    if start_from is not None and resumes:
        raise UserError(
            "the model directory has checkpoints to go on from, so --from has no place",
            where=str(directory),
            hint="Leave --from out to go on, or name another `directory`.",
        )
    if changed := _changes(store.read_recipe(directory), recipe):
        raise UserError(
            f"the model directory belongs to a run with another recipe: {'; '.join(changed)}",
            where=str(directory),
            hint="Name another `directory`, or give the recipe and the overrides that the run began with, to go on.",
        )
    if not resumes and (directory / store.WEIGHTS).exists():
        raise UserError(
            "the model directory holds a model without checkpoints, which training would replace",
            where=str(directory),
            hint="Name another `directory`; --from starts from the weights of a model.",
        )


def _changes(old: Recipe, new: Recipe) -> list[str]:
    """The keys that differ, with both values; not those that only say where things lie."""
    from sparsenmt.files import differences

    def plain(recipe: Recipe) -> Any:
        return recipe.model_dump(mode="json", by_alias=True)

    return [line for line in differences(plain(old), plain(new)) if not _PLACES.fullmatch(line)]


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
