"""The use of a trained model, by its recipe: its task is checked; heads, languages, decoding options are changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.recipe.method_choice import Site
from sparsenmt.recipe.schema import Decoding, Recipe


def without_heads(recipe: Recipe, disabled: Mapping[Any, Collection[int]]) -> Recipe:
    """Return the recipe with these heads of attention sites disabled in addition."""
    sites: dict[str, Site] = {}
    for name, more in disabled.items():
        site: Site = getattr(recipe.model.attention, name)
        heads = site.heads.model_copy(update={"disabled": sorted({*site.heads.disabled, *more})})
        sites[name] = site.model_copy(update={"heads": heads})
    attention = recipe.model.attention.model_copy(update=sites)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"attention": attention})})


def with_languages(recipe: Recipe, source: str | None, target: str | None) -> Recipe:
    """Return the recipe with these languages, where there are any."""
    decoding = with_given(recipe.decoding, source_language=source, target_language=target)
    return recipe.model_copy(update={"decoding": decoding})


def with_given(decoding: Decoding, **given: Any) -> Decoding:
    """Return decoding options with the values of those that are given; None: it is not given."""
    return decoding.model_copy(update={name: value for name, value in given.items() if value is not None})


def check_translates(recipe: Recipe, directory: Path | str, hint: str | None = None) -> None:
    """Raise UserError if a model is a language model; ``hint``: None: that of commands."""
    if not recipe.data.is_language_model:
        return
    if hint is not None:
        raise UserError("this is a language model", where=str(directory), hint=hint)
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
