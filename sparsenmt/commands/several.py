"""What commands with several models and several output files share: what is checked before any work, and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sparsenmt.errors import UserError


def check_models(models: Sequence[Path]) -> None:
    """Refuse what is no model directory, and one that is named twice.

    Raises:
        UserError: there is one.
    """
    from sparsenmt.store import read_manifest

    places = [directory.resolve() for directory in models]
    for i, directory in enumerate(models):
        if places[i] in places[:i]:
            raise UserError("the model is named twice", where=str(directory), hint="Name every model once.")
    for directory in models:
        read_manifest(directory)


def model_labels(models: Sequence[Path]) -> dict[str, Path]:
    """A short name for every model: the last part of its path, or the path where that is not enough."""
    names = [directory.resolve().name for directory in models]
    return {
        str(directory) if names.count(name) > 1 else name: directory
        for name, directory in zip(names, models, strict=True)
    }


def check_outputs(files: Mapping[str, Path | None], inputs: Sequence[Path | None]) -> None:
    """Refuse files that cannot be written, or that would replace an input or one another.

    Args:
        files: option -> what it names.

    Raises:
        UserError: there is one.
    """
    named = {option: path for option, path in files.items() if path is not None}
    for option, path in named.items():
        if path.is_dir():
            raise UserError("this is a directory", where=str(path), hint=f"Name a file as {option}.")
        if not path.resolve().parent.is_dir():
            raise UserError("there is no such directory", where=str(path.parent), hint="Make it first.")
        others = [*inputs, *(other for before, other in named.items() if before < option)]
        if any(other is not None and path.resolve() == other.resolve() for other in others):
            raise UserError(
                f"{option} names a file that another option names", where=str(path), hint="Name another one."
            )
