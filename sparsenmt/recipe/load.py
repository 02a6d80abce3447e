"""Recipe files to a `Recipe`, and back. `assemble.checks.load_recipe` calls `load` with the registered methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparsenmt.errors import UserError
from sparsenmt.recipe.checks import contradictions
from sparsenmt.recipe.errors import Problem, YamlOrigin, raise_together
from sparsenmt.recipe.key_paths import key_path
from sparsenmt.recipe.resolve import (
    MAPPING,
    Overrides,
    apply_overrides,
    as_settings,
    expand_preset,
    read_with_bases,
    resolve_paths,
)
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.socket_methods import Methods, fill_defaults, method_problems
from sparsenmt.recipe.validation_errors import misread_booleans, validation_problems
from sparsenmt.recipe.yaml_tree import YamlNode, find, nearest_origin, plain, tree, write

RecipeLike = Recipe | str | os.PathLike[str] | Mapping[str, Any]
"""A recipe, its file, or a mapping with its keys."""


def load(
    path: str | os.PathLike[str] | Mapping[str, Any],
    methods: Methods,
    overrides: Overrides = (),
    check: Callable[[Recipe], object] | None = None,
) -> Recipe:
    """Read a recipe file.

    Args:
        path: of the file; or the keys and values of a recipe.
        methods: socket -> name of a method -> type of its options.
        overrides: settings laid over the file, in order: ``key.path=value``, settings of another file, or a mapping.
        check: a further check of a valid recipe; the `UserError` that it raises has a key as its place, and the file
            and the line are added here.

    Returns:
        The resolved recipe: sizes of the preset and default options of the methods filled in, corpus paths absolute.

    Raises:
        UserError: the file cannot be read; or all problems of the recipe, in one message.
    """
    settings = as_settings(overrides)
    name = MAPPING if isinstance(path, Mapping) else str(path)
    node, problems = read_with_bases(path if isinstance(path, Mapping) else Path(path))
    if any(problem.path[:1] == ("base",) for problem in problems):
        raise_together(problems, name)  # the base may contain what would be reported as missing
    node, found = apply_overrides(node, settings)
    problems += found
    node, found = resolve_paths(expand_preset(node))
    problems += found
    recipe = _validate(node, methods, problems, name)
    if check is not None:
        try:
            check(recipe)
        except UserError as error:
            key = error.where or ""
            error.where = f"{nearest_origin(node, key_path(key)).place}: {key}"
            raise
    return recipe


def load_resolved(mapping: Mapping[str, Any], methods: Methods, *, origin: str = "recipe") -> Recipe:
    """A recipe from plain values that `dump` wrote: paths are taken literally, no variable is replaced.

    Args:
        origin: the name of the place in messages, e.g. the file's path.

    Raises:
        UserError: all problems of the recipe, in one message.
    """
    node = expand_preset(tree(dict(mapping), YamlOrigin(origin)))
    return _validate(node, methods, [], origin)


def plain_values(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values, with every key but the size of training batches where nothing names it.

    `train` chooses it then, by the device.
    """
    values = recipe.model_dump(mode="json", by_alias=True)
    if "batch_tokens" not in recipe.training.model_fields_set:
        del values["training"]["batch_tokens"]
    return values


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML, with every key; `load` reads the same recipe from it."""
    return write(recipe.model_dump(mode="json", by_alias=True))


def _validate(node: YamlNode, methods: Methods, problems: list[Problem], name: str) -> Recipe:
    """The typed recipe with its keys in the order of the schema; UserError with ``problems`` and all found here."""
    unreadable = {problem.path for problem in problems if (empty := find(node, problem.path)) and empty.value is None}
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(plain(node))
    except ValidationError as error:
        problems = problems + [found for found in validation_problems(error, node) if found.path not in unreadable]
    problems = problems + method_problems(node, methods) + misread_booleans(node, Recipe)
    raise_together(problems + contradictions(node, problems), name)
    assert recipe is not None
    return Recipe.model_validate(fill_defaults(plain_values(recipe), methods))
