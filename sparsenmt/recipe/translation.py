"""Pydantic's errors in a user's words, each at the file and line of the value it complains about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparsenmt.recipe.keys import alternatives, fields_by_key, section_at, section_type
from sparsenmt.recipe.origins import Node, child, find, nearest_origin
from sparsenmt.recipe.problems import Complaint, KeyPath, Problem, show
from sparsenmt.recipe.schema import Recipe
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
    "greater_than": "greater than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
    "multiple_of": "a multiple of",
}
_BOUND_KEYS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
_SECTION_ERRORS = {"model_type", "model_attributes_type", "dict_type", "list_type", "tuple_type"}


def translate(
    error: ValidationError, node: Node, prefix: KeyPath = (), root: type[BaseModel] = Recipe
) -> list[Problem]:
    """Problems for the errors of validating ``node``, which stands at ``prefix`` in the recipe, as a ``root``."""
    located = [(_locate(node, details), details) for details in error.errors(include_url=False)]
    problems: dict[KeyPath, Problem] = {}
    for (path, branch), details in located:
        if branch is not None and _beside_the_point(branch, path, details, node, located):
            continue
        complaint = _complaint(details, path, prefix, root)
        # One complaint a place: the alternatives of a union would repeat it.
        problems.setdefault(path, Problem(nearest_origin(node, path), (*prefix, *path), complaint))
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


def _complaint(details: ErrorDetails, path: KeyPath, prefix: KeyPath, root: type[BaseModel]) -> Complaint:
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    meaning = describe(path, root)
    if kind == "missing":
        return Complaint("this key is required", f"Add it. Its meaning: {meaning}")
    if kind == "extra_forbidden":
        section = section_at(path[:-1], root)
        return unknown_key(str(path[-1]), (*prefix, *path[:-1]), list(fields_by_key(section)) if section else [])
    if kind == "string_type":
        if isinstance(given, (int, float)):
            return Complaint(f"must be text, not {show(given)}", f"Put it into quotes. Its meaning: {meaning}")
        return Complaint(f"must be text, not {show(given)}", f"Its meaning: {meaning}")
    if kind in _BOUNDS:
        bound = context[_BOUND_KEYS.get(kind, kind)]
        return Complaint(f"must be {_BOUNDS[kind]} {bound:.15g}, not {show(given)}", f"Its meaning: {meaning}")
    if kind in ("literal_error", "enum"):
        return _choice(str(context.get("expected", "")), given)
    if kind == "too_short":
        least = context["min_length"]
        items = "item" if least == 1 else "items"
        return Complaint(f"must have at least {least} {items}", f"Add what is missing. Its meaning: {meaning}")
    if kind == "too_long":
        return Complaint(f"must have at most {context['max_length']} items", f"Take some out. Its meaning: {meaning}")
    if kind in _WANTED:
        return Complaint(f"must be {_WANTED[kind]}, not {show(given)}", f"Its meaning: {meaning}")
    if kind in ("value_error", "assertion_error"):
        said = str(context.get("error", details["msg"])).rstrip(".")
        return Complaint(f"{said}", f"Its meaning: {meaning}")
    reason = details["msg"].replace("Input should", "should").rstrip(".")
    return Complaint(f"{reason}, not {show(given)}", f"Its meaning: {meaning}")


def describe(path: KeyPath, root: type[BaseModel] = Recipe) -> str:
    """What a key means and its default, in sentences."""
    section = section_at(path[:-1], root) if path else None
    field = fields_by_key(section).get(str(path[-1])) if section else None
    if field is None or not field.description:
        return "see `sparsenmt recipe-docs`."
    text = f"{field.description.rstrip('.')}."
    if field.is_required() or not isinstance(field.default, (bool, int, float, str)):
        return text
    return f"{text} Default: {field.default if isinstance(field.default, str) else show(field.default)}."


def _choice(expected: str, given: Any) -> Complaint:
    choices = re.findall(r"'([^']*)'", expected)
    close = nearest(given, choices, cutoff=0.6) if isinstance(given, str) else None
    return Complaint(
        f"must be one of {', '.join(choices) or expected}; not {show(given)}",
        f"Did you mean `{close}`?" if close else "Write one of these words.",
    )


def misread_booleans(node: Node, section: type[BaseModel], prefix: KeyPath = ()) -> list[Problem]:
    """`true` where a number is wanted: pydantic would read it as 1."""
    return [
        Problem(
            value.origin,
            path,
            Complaint(
                f"must be a number, not {show(value.value)}", f"Its meaning: {describe(path[len(prefix) :], section)}"
            ),
        )
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
