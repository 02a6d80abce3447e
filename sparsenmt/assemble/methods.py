"""The methods that a recipe chooses, and what they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.recipe import schema
from sparsenmt.recipe.load import load_resolved
from sparsenmt.recipe.method_choice import MemoryChoice, MethodChoice, Site
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method, Socket


def load_resolved_recipe(mapping: Mapping[str, Any], *, origin: str = "recipe") -> schema.Recipe:
    """A recipe from plain values that `recipe.load.dump` wrote; see `recipe.load.load_resolved`."""
    return load_resolved(mapping, registry.methods(), origin=origin)


def attention_sites(model: schema.ModelSection) -> tuple[SiteName, ...]:
    """The sites that a recipe's model has, if it has an encoder: a recurrent layer replaces the decoder's own."""
    return tuple(name for name in SITES if name != "decoder_self" or model.recurrence is None)


def chosen_methods(model: schema.ModelSection) -> list[tuple[str, Method, MethodChoice]]:
    """All methods that a recipe plugs in, each with its key and its options."""
    choices: list[tuple[str, Socket, MethodChoice]] = []
    for name in attention_sites(model):
        site: Site = getattr(model.attention, name)
        key = f"model.attention.{name}"
        choices += [(f"{key}.pattern", "pattern", site.pattern), (f"{key}.transform", "transform", site.transform)]
        optional: list[tuple[str, Socket, MethodChoice | None]] = [
            (f"{key}.position", "position", site.position),
            (f"{key}.span", "span", site.span),
            (f"{key}.heads.given", "heads", site.heads.given),
        ]
        choices += [(where, socket, choice) for where, socket, choice in optional if choice is not None]
    if model.recurrence is not None:
        choices.append(("model.recurrence", "recurrence", model.recurrence))
    choices += [(f"model.memory.{i}", "memory", choice) for i, choice in enumerate(model.memory)]
    choices.append(("model.depth", "depth", model.depth))
    return [(key, registry.get(socket, choice.name), choice) for key, socket, choice in choices]


def declared_refusal(model: schema.ModelSection) -> UserError | None:
    """The error of a recipe's model that plugs in a method where it declares that it has no meaning; None: none does.

    `registry.register` says what a method declares.
    """
    usual, chosen = Site(), chosen_methods(model)
    for key, method, choice in chosen:
        site = key.split(".")[:3]  # "model", "attention" and its name
        places: dict[str, str] = {choice.at: f"at {choice.at}"} if isinstance(choice, MemoryChoice) else {}
        if site[1] == "attention":
            places = {site[2]: f"at {site[2]}"}
            for where, other, its in chosen:
                if where.split(".")[:3] == site and other is not method and its != getattr(usual, other.socket, None):
                    places[other.socket] = f"beside {other.title}"
        for place, words in places.items():
            if method.refuses_place(place, choice.options):
                hint = "Leave one of the methods out, or choose another one."
                return UserError(f"{method.name} has no meaning {words}", where=key, hint=hint)
    return None


def required_features(recipe: schema.Recipe) -> frozenset[str]:
    """Source features that the recipe's methods read."""
    return frozenset().union(*(method.requires for _, method, _ in chosen_methods(recipe.model)))


def methods_of_words(recipe: schema.Recipe) -> list[str]:
    """Key and name of the recipe's methods that decide by words between spaces."""
    return [
        f"{key} ({method.name})"
        for key, method, choice in chosen_methods(recipe.model)
        if method.options.model_validate(choice.options).reads_words
    ]
