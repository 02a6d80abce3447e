"""Settings laid over a recipe: from the command line, ``training.learning_rate=1e-3``, or from a file of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.errors import UserError
from sparsenmt.recipe.merging import overlay
from sparsenmt.recipe.origins import Node, parse
from sparsenmt.recipe.problems import Complaint, KeyPath, Problem, YamlOrigin, dotted, show

_MOST_PARTS = 50  # of a key


@dataclass(frozen=True)
class Setting:
    """An override that stands in a file: its mistakes are told with the lines of its values."""

    key: str
    value: Node


def apply_overrides(recipe: Node, overrides: Sequence[str | Setting]) -> tuple[Node, list[Problem]]:
    """The recipe with each ``key=value`` laid over it, in order; values are read as YAML."""
    problems: list[Problem] = []
    for each in overrides:
        given, found = (each, []) if isinstance(each, Setting) else _parse(each)
        problems += found
        if given is None:
            continue
        parts, value = given.key.strip().split("."), given.value
        if complaint := _key_complaint(parts):
            problems.append(Problem(value.origin, (), complaint))
            continue
        result = _set(recipe, (), parts, value)
        if isinstance(result, Problem):
            problems.append(result)
        else:
            recipe = result
    return recipe, problems


def _parse(text: str) -> tuple[Setting | None, list[Problem]]:
    """``key=value``; None if it is none."""
    origin = YamlOrigin(f"override '{text}'", Path.cwd(), is_override=True)
    key, equals, value_text = text.partition("=")
    if not equals or not key.strip():
        complaint = Complaint("must look like `key=value`", "Write for instance `training.seed=2`.")
        return None, [Problem(origin, (), complaint)]
    parts = key.strip().split(".")
    if _key_complaint(parts) is not None:
        return Setting(key, Node(None, origin)), []
    try:
        parsed, found = parse(value_text, name=origin.place, folder=Path.cwd())
    except UserError as error:
        return None, [Problem(origin, (), _value_complaint(error))]
    above = tuple(int(part) if part.isdecimal() and len(part) < 10 else part for part in parts)
    problems = [Problem(origin, (*above, *problem.path), problem.complaint) for problem in found]
    return Setting(key, _mark(parsed, origin) if parsed is not None else Node(None, origin)), problems


def _key_complaint(parts: Sequence[str]) -> Complaint | None:
    if parts[0] == "base":
        return Complaint("`base` can be set in a recipe file only", "Write a recipe that names both files as `base`.")
    if "" in parts or len(parts) > _MOST_PARTS or not all(part.isprintable() for part in parts):
        return Complaint("the key has empty parts, or is no key", "Write it with single dots: `training.seed=2`.")
    return None


def _value_complaint(error: UserError) -> Complaint:
    """What is wrong with a value that YAML does not understand."""
    return Complaint(f"{error.message}", f"Put the value into quotes if it is a text. {error.hint}")


def _mark(node: Node, origin: YamlOrigin) -> Node:
    """The value with the override as the origin of all its parts."""
    if isinstance(node.value, dict):
        return Node({key: _mark(child, origin) for key, child in node.value.items()}, origin)
    if isinstance(node.value, list):
        return Node([_mark(child, origin) for child in node.value], origin)
    return Node(node.value, origin)


def _set(node: Node | None, path: KeyPath, parts: Sequence[str], value: Node) -> Node | Problem:
    """``node``, which stands at ``path``, with ``value`` laid over what is at ``parts`` below it."""
    if not parts:
        return overlay(node, value, path) if node is not None else value
    part = parts[0]
    is_list = node is not None and isinstance(node.value, list)
    is_absent = node is None or node.value is None
    if is_list or (is_absent and part.isdecimal()):
        return _set_item(node, path, parts, value)
    if node is not None and node.value is not None and not isinstance(node.value, dict):
        return Problem(
            value.origin,
            (),
            Complaint(
                f"`{dotted(path)}` is {show(node.value)}, not a section: it has no key `{part}`",
                f"Set `{dotted(path)}` itself, or check the key.",
            ),
        )
    children = node.value if node is not None and isinstance(node.value, dict) else {}
    inner = _set(children.get(part), (*path, part), parts[1:], value)
    if isinstance(inner, Problem):
        return inner
    above = Node({part: inner}, node.origin if node is not None else value.origin)
    # Laying over, instead of inserting, applies the rule for methods whose name changes.
    return overlay(node, above, path) if node is not None and isinstance(node.value, dict) else above


def _set_item(node: Node | None, path: KeyPath, parts: Sequence[str], value: Node) -> Node | Problem:
    """As `_set`, where a list is or is to be: an index one past its end appends."""
    items = node.value if node is not None and isinstance(node.value, list) else []
    part = parts[0]
    if not part.isdecimal():
        return Problem(
            value.origin,
            (),
            Complaint(f"`{dotted(path)}` is a list", f"Write an index after it, e.g. `{dotted(path)}.0`."),
        )
    index = int(part) if len(part) < 10 else 10**10
    if index > len(items):
        have = f"{len(items)} item{'' if len(items) == 1 else 's'}"
        return Problem(
            value.origin,
            (),
            Complaint(
                f"`{dotted(path)}` has {have}: there is no item {part}",
                f"Items are counted from 0; `{dotted(path)}.{len(items)}` adds one.",
            ),
        )
    inner = _set(items[index] if index < len(items) else None, (*path, index), parts[1:], value)
    if isinstance(inner, Problem):
        return inner
    return Node([*items[:index], inner, *items[index + 1 :]], node.origin if node is not None else value.origin)
