"""Several models in one report: checks of their directories, and short labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsenmt.assemble.model_directory import MANIFEST, RECIPE, read_manifest
from sparsenmt.errors import UserError


def check_models(models: Sequence[Path]) -> None:
    """Raise UserError for a path that is no model directory, and for one that is named twice."""
    places = [directory.resolve() for directory in models]
    for i, directory in enumerate(models):
        if places[i] in places[:i]:
            raise UserError("the model is named twice", where=str(directory), hint="Name every model once.")
    for directory in models:
        read_manifest(directory)


def model_labels(models: Sequence[Path]) -> dict[str, Path]:
    """Label every model by the last part of its path, or by the whole path where that is ambiguous."""
    names = [directory.resolve().name for directory in models]
    return {
        str(directory) if names.count(name) > 1 else name: directory
        for name, directory in zip(names, models, strict=True)
    }


def models_in(place: Path) -> list[Path]:
    """Return the model directory that is named, or those in the named directory; UserError if there are none."""
    if (place / MANIFEST).exists() and (place / RECIPE).exists():
        return [place]
    if not place.exists():
        read_manifest(place)  # says that there is none
    inside = sorted(path.parent for path in place.glob(f"*/{RECIPE}") if (path.parent / MANIFEST).exists())
    if not inside:
        raise UserError(
            "is no model directory, and holds none",
            where=str(place),
            hint="Name one that `train` or `sweep` wrote.",
        )
    return inside
