"""Paths in recipes: `${VARIABLE}` and `${VARIABLE:-default}`, `~`, and what relative corpus paths are relative to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from sparsenmt.recipe.origins import Node, child, find, replace
from sparsenmt.recipe.problems import KeyPath, Problem

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")


def expand(text: str) -> tuple[str | None, str]:
    """The text with its variables replaced; or None and what is wrong. An empty variable counts as unset."""
    for match in _VARIABLE.finditer(text):
        name, default = match.groups()
        if default is None and not os.environ.get(name):
            return None, f"the environment variable {name} is not set (or write a default: `${{{name}:-default}}`)"
    if "${" in _VARIABLE.sub("", text):
        return None, "`${` starts a variable: write `${NAME}` or `${NAME:-default}`"
    expanded = _VARIABLE.sub(lambda match: os.environ.get(match[1]) or match[2] or "", text)
    return os.path.expanduser(expanded), ""


def resolve_paths(recipe: Node) -> tuple[Node, list[Problem]]:
    """The recipe with its variables replaced and its corpus paths absolute.

    A corpus path is relative to the folder of the recipe file that names it, or to the working directory if it was
    given on the command line. The two directories stay relative to the working directory.
    """
    problems: list[Problem] = []
    for path in list(_path_keys(recipe)):
        node = find(recipe, path)
        if node is None or not isinstance(node.value, str):
            continue
        if not node.value:
            problems.append(Problem(node.origin, path, "must not be empty"))
            continue
        text, complaint = expand(node.value)
        if text is None:
            problems.append(Problem(node.origin, path, complaint))
            continue
        if path[-1] in ("source", "target") and node.origin.folder is not None:
            text = os.path.abspath(node.origin.folder / text)
        recipe = replace(recipe, path, Node(text, node.origin))
    return recipe, problems


def _path_keys(recipe: Node) -> Iterator[KeyPath]:
    yield ("directory",)
    yield ("data", "directory")
    data = child(recipe, "data")
    train = child(data, "train") if data is not None else None
    count = len(train.value) if train is not None and isinstance(train.value, list) else 0
    corpora: list[KeyPath] = [("data", "train", index) for index in range(count)]
    for corpus in [*corpora, ("data", "dev"), ("data", "test")]:
        yield (*corpus, "source")
        yield (*corpus, "target")
