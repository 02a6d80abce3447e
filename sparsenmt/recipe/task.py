"""Checks of the task that a model was trained for: translation, or a language model."""

from __future__ import annotations

from pathlib import Path

from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Recipe


def check_translates(recipe: Recipe, directory: Path | str) -> None:
    """Raise UserError if a model is a language model."""
    if recipe.data.is_language_model:
        raise UserError(
            "this is a language model: the command is for models that translate",
            where=str(directory),
            hint="`sparsenmt score --model DIR --text FILE` scores a text, `sparsenmt decode` continues lines.",
        )


def check_language_model(recipe: Recipe, directory: Path | str) -> None:
    """Raise UserError unless a model is a language model."""
    if not recipe.data.is_language_model:
        raise UserError(
            "the model translates: it gives probabilities to targets of sources, not to a text",
            where=str(directory),
            hint="Give --source and --target, or --source and --reference.",
        )
