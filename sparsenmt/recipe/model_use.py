"""Recipes of models that are used otherwise: without heads, in other languages, with other decoding options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

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
