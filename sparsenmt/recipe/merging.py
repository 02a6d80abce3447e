"""`base:` recipes, and the rule by which one recipe is laid over another."""

from __future__ import annotations

import os
from pathlib import Path

from sparsenmt.errors import UserError
from sparsenmt.recipe.origins import Node, child, read
from sparsenmt.recipe.paths import expand
from sparsenmt.recipe.problems import Complaint, KeyPath, Problem
from sparsenmt.recipe.sockets import PLACE_KEYS, socket_at

_MOST_FILES = 100


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


def read_with_bases(path: Path) -> tuple[Node, list[Problem]]:
    """A recipe file laid over the recipes that it names as ``base``: a path, or a list, later ones over earlier ones.

    Raises:
        UserError: a file cannot be read, recipes include each other in a circle, or there are too many of them.
    """
    return _read(path, (), [])


def _read(path: Path, including: tuple[Path, ...], done: list[Path]) -> tuple[Node, list[Problem]]:
    """As `read_with_bases`; ``including`` leads to this file, ``done`` are all files read so far."""
    node, problems = read(path)
    done.append(path)
    assert isinstance(node.value, dict)
    base = node.value.get("base")
    if base is None:
        return node, problems
    own = Node({key: value for key, value in node.value.items() if key != "base"}, node.origin)
    if any(problem.path[:1] == ("base",) for problem in problems):
        return own, problems
    chain = (*including, Path(os.path.realpath(path)))
    below: Node | None = None
    for entry in base.value if isinstance(base.value, list) else [base]:
        name, complaint = _base_name(entry)
        if name is None:
            problems.append(Problem(entry.origin, ("base",), complaint or _NO_NAME))
            continue
        its, its_problems = _read(_base_file(path.parent / name, entry, chain, done), chain, done)
        problems += its_problems
        below = its if below is None else overlay(below, its)
    return (own if below is None else overlay(below, own)), problems


def _base_file(path: Path, entry: Node, chain: tuple[Path, ...], done: list[Path]) -> Path:
    file, where = Path(os.path.normpath(path)), f"{entry.origin.place}: base"
    if Path(os.path.realpath(file)) in chain:
        raise UserError(
            f"{file} includes itself", where=where, hint="Remove the line here, or the one there that leads back."
        )
    if len(done) >= _MOST_FILES:
        raise UserError(
            f"more than {_MOST_FILES} files are included", where=where, hint="Name each base once, in few files."
        )
    if not os.path.isfile(file):
        raise UserError(
            f"there is no file {file}", where=where, hint="Write a path relative to the folder of this recipe."
        )
    return file


_NO_NAME = Complaint("must be the path of a recipe, or a list of paths", "Write for instance `base: other.yaml`.")


def _base_name(entry: Node) -> tuple[str | None, Complaint | None]:
    if not isinstance(entry.value, str) or not entry.value:
        return None, _NO_NAME
    return expand(entry.value)
