"""`base:` recipes, and the rule by which one recipe is laid over another."""

from __future__ import annotations

import os
from pathlib import Path

from sparsenmt.errors import UserError
from sparsenmt.recipe.origins import Node, child, read
from sparsenmt.recipe.paths import expand
from sparsenmt.recipe.problems import KeyPath, Problem
from sparsenmt.recipe.sockets import PLACE_KEYS, socket_at


def overlay(below: Node, above: Node, path: KeyPath = ()) -> Node:
    """``above`` laid over ``below``: mappings are merged, lists and scalars replaced.

    A method mapping whose ``name`` changes loses the options of the method that it replaces; options given on the
    command line are meant for the new method and stay.
    """
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    kept = below.value
    socket = socket_at(path)
    if socket is not None and _name(above) is not None and _name(above) != _name(below):
        place = PLACE_KEYS.get(socket, ())
        kept = {key: value for key, value in kept.items() if value.origin.is_override or key in place}
    merged = dict(kept)
    for key, value in above.value.items():
        merged[key] = overlay(merged[key], value, (*path, key)) if key in merged else value
    return Node(merged, above.origin)


def _name(node: Node) -> object:
    name = child(node, "name")
    return name.value if name is not None else None


def read_with_bases(path: Path, including: tuple[Path, ...] = ()) -> tuple[Node, list[Problem]]:
    """A recipe file laid over the recipes that it names as ``base``: a path, or a list, later ones over earlier ones.

    Raises:
        UserError: a file cannot be read, or recipes include each other in a circle.
    """
    node, problems = read(path)
    assert isinstance(node.value, dict)
    base = node.value.get("base")
    if base is None:
        return node, problems
    chain = (*including, Path(os.path.realpath(path)))
    below: Node | None = None
    for entry in base.value if isinstance(base.value, list) else [base]:
        name, complaint = _base_name(entry)
        if name is None:
            problems.append(Problem(entry.origin, ("base",), complaint))
            continue
        file = Path(os.path.normpath(path.parent / name))
        if Path(os.path.realpath(file)) in chain:
            raise UserError(f"base: {file} includes itself", where=entry.origin.place)
        if not file.is_file():
            raise UserError(f"base: there is no file {file}", where=entry.origin.place)
        its, its_problems = read_with_bases(file, chain)
        problems += its_problems
        below = its if below is None else overlay(below, its)
    own = Node({key: value for key, value in node.value.items() if key != "base"}, node.origin)
    return (own if below is None else overlay(below, own)), problems


def _base_name(entry: Node) -> tuple[str | None, str]:
    if not isinstance(entry.value, str) or not entry.value:
        return None, "must be the path of a recipe, or a list of paths"
    return expand(entry.value)
