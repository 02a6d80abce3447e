"""Paths in recipes: `${VARIABLE}` and `${VARIABLE:-default}`, `~`, and what relative corpus paths are relative to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from sparsenmt.recipe.origins import Node, child, find, replace
from sparsenmt.recipe.problems import Complaint, KeyPath, Problem

_FILES = ("source", "target", "tags", "documents")  # of a corpus
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")


def expand(text: str) -> tuple[str | None, Complaint | None]:
    """The text with its variables replaced; or None and what is wrong. An empty variable counts as unset."""
    for match in _VARIABLE.finditer(text):
        name, default = match.groups()
        if default is None and not os.environ.get(name):
            return None, Complaint(
                f"the environment variable {name} is not set",
                f"Set it, or write a default into the recipe: `${{{name}:-default}}`.",
            )
    if "${" in _VARIABLE.sub("", text):
        return None, Complaint("`${` starts a variable", "Write `${NAME}` or `${NAME:-default}`.")
    expanded = os.path.expanduser(_VARIABLE.sub(lambda match: os.environ.get(match[1]) or match[2] or "", text))
    complaint = _unusable(expanded)
    return (expanded, None) if complaint is None else (None, complaint)


def _unusable(path: str) -> Complaint | None:
    """What is wrong with a path that no file of the program could hold."""
    if not path:
        return Complaint(
            "nothing is left of it when its variables are replaced", "Set them, or write a path beside them."
        )
    if "\0" in path:
        return Complaint("a path cannot hold the character U+0000", "Write the path again, without escapes.")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return Complaint(
            "the path, or the folder that it is relative to, is not UTF-8", "Rename it: recipes and models are UTF-8."
        )
    return None


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
            problems.append(Problem(node.origin, path, Complaint("must not be empty", "Write a path.")))
            continue
        text, complaint = expand(node.value)
        if text is not None and path[-1] in _FILES and node.origin.folder is not None:
            text = os.path.abspath(node.origin.folder / text)
            complaint = _unusable(text)
        if text is None or complaint is not None:
            assert complaint is not None
            problems.append(Problem(node.origin, path, complaint))
            continue
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
        yield from ((*corpus, file) for file in _FILES)
