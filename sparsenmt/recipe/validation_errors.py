"""Pydantic's errors as problems in a user's words, each with the file and line of the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparsenmt.recipe.errors import Complaint, Problem, nearest, show, unknown_key
from sparsenmt.recipe.key_paths import KeyPath, alternatives, fields_by_key, section_at, type_inside
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.yaml_tree import YamlNode, child, children, find, nearest_origin

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


def validation_problems(
    error: ValidationError,
    node: YamlNode,
    prefix: KeyPath = (),
    root: type[BaseModel] = Recipe,
    unknown: Callable[[str, KeyPath, Sequence[str]], Complaint] = unknown_key,
) -> list[Problem]:
    """The problems of validating ``node``, found at ``prefix`` in the recipe, as a ``root``.

    Args:
        unknown: makes the complaint about a key that is not among those of its section.
    """
    located = [(_locate(node, details), details) for details in error.errors(include_url=False)]
    of_union: dict[KeyPath, list[ErrorDetails]] = {}
    for (_, union), details in located:
        if union is not None:
            of_union.setdefault(union, []).append(details)
    problems: dict[KeyPath, Problem] = {}
    for (path, union), details in located:
        if union is not None and _is_of_unintended_member(union, path, details, node, of_union[union]):
            continue
        complaint: Callable[[], Complaint]
        if details["type"] == "extra_forbidden":
            section = section_at(path[:-1], root)
            valid = list(fields_by_key(section)) if section else []
            complaint = partial(unknown, str(path[-1]), (*prefix, *path[:-1]), valid)
        else:
            complaint = partial(_complaint, details, path, root)
        # One complaint a value: the members of a union would repeat it.
        problems.setdefault(path, Problem(nearest_origin(node, path), (*prefix, *path), complaint))
    return list(problems.values())


def _locate(node: YamlNode, details: ErrorDetails) -> tuple[KeyPath, KeyPath | None]:
    """An error's key path without pydantic's names of union members; and the path of the union, if there was one."""
    path: list[str | int] = []
    union: KeyPath | None = None
    location = details["loc"]
    for position, part in enumerate(location):
        last = position == len(location) - 1
        if child(find(node, tuple(path)), part) is not None or (last and details["type"] == "missing"):
            path.append(part)
        elif union is None:
            union = tuple(path)
    return tuple(path), union


def _is_of_unintended_member(
    union: KeyPath,
    path: KeyPath,
    details: ErrorDetails,
    node: YamlNode,
    of_union: list[ErrorDetails],
) -> bool:
    """True if an error belongs to a member of a union that the user did not mean.

    A user who wrote a mapping meant the section, a user who wrote a scalar did not.

    Args:
        of_union: all errors of the union.
    """
    value = find(node, union)
    if value is not None and isinstance(value.value, (dict, list)):
        return (
            path == union
            and details["type"].endswith("_type")
            and any(
                other["type"] in {"missing", "extra_forbidden"} or len(other["loc"]) > len(union) + 1
                for other in of_union
                if other is not details
            )
        )
    return details["type"] in _SECTION_ERRORS and any(other["type"] not in _SECTION_ERRORS for other in of_union)


def _complaint(details: ErrorDetails, path: KeyPath, root: type[BaseModel]) -> Complaint:
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    meaning = f"Its meaning: {describe(path, root)}"
    if kind == "missing":
        return Complaint("this key is required", f"Add it. {meaning}")
    if kind == "string_type":
        is_number = isinstance(given, (int, float))
        return Complaint(f"must be text, not {show(given)}", f"{'Put it into quotes. ' if is_number else ''}{meaning}")
    if kind in _BOUNDS:
        key, relation = _BOUNDS[kind]
        return Complaint(f"must be {relation} {context[key]:.15g}, not {show(given)}", meaning)
    if kind in ("literal_error", "enum"):
        return _choice(str(context.get("expected", "")), given, context.get("missing", ""))
    if kind == "too_short":
        least = context["min_length"]
        return Complaint(
            f"must have at least {least} item{'' if least == 1 else 's'}", f"Add what is missing. {meaning}"
        )
    if kind == "too_long":
        return Complaint(f"must have at most {context['max_length']} items", f"Remove some. {meaning}")
    if kind in _WANTED:
        return Complaint(f"must be {_WANTED[kind]}, not {show(given)}", meaning)
    if kind in ("value_error", "assertion_error"):
        said = str(context.get("error", details["msg"])).rstrip(".")
        return Complaint(said, meaning)
    reason = details["msg"].replace("Input should", "should").rstrip(".")
    return Complaint(f"{reason}, not {show(given)}", meaning)


def describe(path: KeyPath, root: type[BaseModel] = Recipe) -> str:
    """The meaning of a key and its default, in sentences."""
    section = section_at(path[:-1], root) if path else None
    field = fields_by_key(section).get(str(path[-1])) if section else None
    if field is None or not field.description:
        return "see docs/reference/recipes.md."
    text = f"{field.description.rstrip('.')}."
    if field.is_required() or not isinstance(field.default, (bool, int, float, str)) or field.default == "":
        return text
    return f"{text} Default: {field.default if isinstance(field.default, str) else show(field.default)}."


_OTHER_VALUES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Values as other toolkits call them."""


def _choice(expected: str, given: Any, missing: str) -> Complaint:
    choices = re.findall(r"'([^']*)'", expected)
    close = (_OTHER_VALUES.get(given) or nearest(given, choices, cutoff=0.6)) if isinstance(given, str) else None
    close = close if close in choices else None
    return Complaint(
        f"must be one of {', '.join(choices) or expected}; not {show(given)}",
        f"{missing}Did you mean `{close}`?" if close else f"{missing}Write one of these words.",
    )


def misread_booleans(node: YamlNode, section: type[BaseModel], prefix: KeyPath = ()) -> list[Problem]:
    """Problems of `true` in place of a number, which pydantic would read as 1."""
    problems = []
    for path, value, annotation in _values(node, section, ()):
        types = [one for one in alternatives(annotation) if isinstance(one, type)]
        if isinstance(value.value, bool) and (int in types or float in types) and bool not in types:
            hint = f"Its meaning: {describe(path, section)}"
            complaint = Complaint(f"must be a number, not {show(value.value)}", hint)
            problems.append(Problem(value.origin, (*prefix, *path), complaint))
    return problems


def _values(node: YamlNode, annotation: Any, path: KeyPath) -> Iterator[tuple[KeyPath, YamlNode, Any]]:
    """Yield every value below ``node`` whose type is known, with its type."""
    for step, value in children(node):
        inner = type_inside(annotation, step)
        if inner is not None:
            yield (*path, step), value, inner
            yield from _values(value, inner, (*path, step))
