"""Pydantic's errors in a user's words, each at the file and line of the value it complains about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparsenmt.recipe.keys import alternatives, fields_by_key, section_at, section_type
from sparsenmt.recipe.origins import Node, child, find, nearest_origin
from sparsenmt.recipe.problems import KeyPath, Problem, show
from sparsenmt.recipe.suggestions import nearest, unknown_key

_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a section (keys with values, indented under it)",
    "model_attributes_type": "a section (keys with values, indented under it)",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
}
_SECTION_ERRORS = {"model_type", "model_attributes_type", "dict_type", "list_type", "tuple_type"}


def translate(error: ValidationError, node: Node, prefix: KeyPath = ()) -> list[Problem]:
    """Problems for the errors of validating ``node``, which stands at ``prefix`` in the recipe."""
    located = [(_locate(node, details), details) for details in error.errors(include_url=False)]
    problems: dict[KeyPath, Problem] = {}
    for (path, branch), details in located:
        if branch is not None and _beside_the_point(branch, path, details, node, located):
            continue
        message = _message(details, (*prefix, *path))
        # One complaint a place: the alternatives of a union would repeat it.
        problems.setdefault(path, Problem(nearest_origin(node, path), (*prefix, *path), message))
    return list(problems.values())


def _locate(node: Node, details: ErrorDetails) -> tuple[KeyPath, KeyPath | None]:
    """An error's key path without pydantic's names of union members; and where such a name stood."""
    path: list[str | int] = []
    branch: KeyPath | None = None
    location = details["loc"]
    for position, part in enumerate(location):
        here = find(node, tuple(path))
        last = position == len(location) - 1
        if (here is not None and child(here, part) is not None) or (last and details["type"] == "missing"):
            path.append(part)
        elif branch is None:
            branch = tuple(path)
    return tuple(path), branch


def _beside_the_point(
    branch: KeyPath,
    path: KeyPath,
    details: ErrorDetails,
    node: Node,
    located: list[tuple[tuple[KeyPath, KeyPath | None], ErrorDetails]],
) -> bool:
    """Whether an error belongs to a member of a union that the user did not mean.

    Who wrote a mapping meant the section, who wrote a scalar did not.
    """
    value = find(node, branch)
    others = [other for (_, its_branch), other in located if its_branch == branch and other is not details]
    if value is not None and isinstance(value.value, (dict, list)):
        deeper = any(
            other["type"] in {"missing", "extra_forbidden"} or len(other["loc"]) > len(branch) + 1 for other in others
        )
        return path == branch and details["type"].endswith("_type") and deeper
    return details["type"] in _SECTION_ERRORS and any(other["type"] not in _SECTION_ERRORS for other in others)


def _message(details: ErrorDetails, path: KeyPath) -> str:
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "missing":
        return "this key is required"
    if kind == "extra_forbidden":
        section = section_at(path[:-1])
        return unknown_key(str(path[-1]), path[:-1], list(fields_by_key(section)) if section else [])
    if kind == "string_type":
        hint = "; put it in quotes" if isinstance(given, (int, float)) else ""
        return f"must be text, not {show(given)}{hint}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"must be {words} {context[key]:.15g}, not {show(given)}"
    if kind in ("literal_error", "enum"):
        return _choice(str(context.get("expected", "")), given)
    if kind == "too_short":
        least = context["min_length"]
        return f"must have at least {least} {'item' if least == 1 else 'items'}"
    if kind == "too_long":
        return f"must have at most {context['max_length']} items"
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", details["msg"]))
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {show(given)}"
    return f"{details['msg'][:1].lower()}{details['msg'][1:]}, not {show(given)}"


def _choice(expected: str, given: Any) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    listed = ", ".join(choices) or expected
    close = nearest(given, choices, cutoff=0.6) if isinstance(given, str) else None
    hint = f"; did you mean `{close}`?" if close else ""
    return f"must be one of {listed}; not {show(given)}{hint}"


def misread_booleans(node: Node, section: type[BaseModel], prefix: KeyPath = ()) -> list[Problem]:
    """`true` where a number is wanted: pydantic would read it as 1."""
    return [
        Problem(value.origin, path, f"must be a number, not {show(value.value)}")
        for path, value, annotation in _values(node, section, prefix)
        if isinstance(value.value, bool)
        and {int, float} & set(_hashable(annotation))
        and bool not in _hashable(annotation)
    ]


def _hashable(annotation: Any) -> list[type]:
    return [one for one in alternatives(annotation) if isinstance(one, type)]


def _values(node: Node, section: type[BaseModel], path: KeyPath) -> Iterator[tuple[KeyPath, Node, Any]]:
    """Every value under ``node`` that the section's type knows, with its annotation."""
    if not isinstance(node.value, dict):
        return
    for key, field in fields_by_key(section).items():
        value = node.value.get(key)
        if value is None:
            continue
        here = (*path, key)
        yield here, value, field.annotation
        inner = section_type(field.annotation)
        if inner is not None:
            yield from _values(value, inner, here)
        children = value.value if isinstance(value.value, (list, dict)) else ()
        for step, item in enumerate(children) if isinstance(children, list) else list(dict(children).items()):
            item_type = section_type(field.annotation, step)
            if item_type is not None and isinstance(item, Node):
                yield from _values(item, item_type, (*here, step))
