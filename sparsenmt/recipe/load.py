"""Recipe files -> `Recipe`: bases, overrides, presets, variables in paths; all mistakes are shown together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparsenmt.errors import UserError
from sparsenmt.recipe.checks import cross_problems
from sparsenmt.recipe.merging import read_with_bases
from sparsenmt.recipe.origins import Node, find, nearest_origin, plain, tree
from sparsenmt.recipe.overrides import Setting, apply_overrides
from sparsenmt.recipe.paths import resolve_paths
from sparsenmt.recipe.presets import expand_preset
from sparsenmt.recipe.problems import Problem, YamlOrigin, raise_together
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.sockets import Methods, fill_defaults, method_problems
from sparsenmt.recipe.syntax import write
from sparsenmt.recipe.translation import misread_booleans, translate


def load(
    path: str | os.PathLike[str],
    methods: Methods,
    overrides: Sequence[str | Setting] = (),
    check: Callable[[Recipe], object] | None = None,
) -> Recipe:
    """Read a recipe file.

    Args:
        path: the YAML file.
        methods: socket -> name of a method -> type of its options.
        overrides: settings laid over the file, in order: ``key.path=value``, or what another file says.
        check: looks at a recipe that is right by itself, and raises a `UserError` whose place is a key; the file and
            the line are put before it here.

    Returns:
        The resolved recipe: sizes of the preset and default options of the methods filled in, corpus paths absolute.

    Raises:
        UserError: the file cannot be read; or everything that is wrong with the recipe, in one message.
    """
    node, problems = read_with_bases(Path(path))
    if any(problem.path[:1] == ("base",) for problem in problems):
        raise_together(problems, str(path))  # what is missing may stand in the base
    node, found = apply_overrides(node, overrides)
    problems += found
    node, found = resolve_paths(expand_preset(node))
    problems += found
    recipe = _validate(node, methods, problems, str(path))
    if check is not None:
        try:
            check(recipe)
        except UserError as error:
            error.where = _written_at(node, error.where or "")
            raise
    return recipe


def _written_at(node: Node, key: str) -> str:
    """File, line and key; for a key that is not written, the line of the section around it."""
    path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    return f"{nearest_origin(node, path).place}: {key}"


def load_resolved(mapping: Mapping[str, Any], methods: Methods, *, origin: str = "recipe") -> Recipe:
    """A recipe from plain values that `dump` wrote: paths are taken as they are, no variable is replaced.

    Args:
        mapping: the recipe's values.
        methods: as for `load`.
        origin: how messages name the place, e.g. the file's path.

    Raises:
        UserError: everything that is wrong with it, in one message.
    """
    node = expand_preset(tree(dict(mapping), YamlOrigin(origin)))
    return _validate(node, methods, [], origin)


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every key written out; `load` reads the same recipe from it."""
    return write(recipe.model_dump(mode="json", by_alias=True))


def _validate(node: Node, methods: Methods, problems: list[Problem], name: str) -> Recipe:
    """The typed recipe; raises a `UserError` of ``problems`` and everything found here, in the order of the schema."""
    values = plain(node)
    unreadable = {problem.path for problem in problems if (empty := find(node, problem.path)) and empty.value is None}
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        problems = problems + [found for found in translate(error, node) if found.path not in unreadable]
    problems = problems + method_problems(node, methods) + misread_booleans(node, Recipe)
    problems += cross_problems(node, problems)
    raise_together(problems, name)
    assert recipe is not None
    return Recipe.model_validate(fill_defaults(recipe.model_dump(mode="json", by_alias=True), methods))
