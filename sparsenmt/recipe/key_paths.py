"""The schema as key paths: the keys of a section, and the type at a key path."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparsenmt.recipe.schema import Recipe

KeyPath = tuple[str | int, ...]
"""The keys, and the indices in lists, that lead to a value."""


def key_path(dotted: str) -> KeyPath:
    """The key path that overrides and messages write as ``data.train.0.weight``."""
    return tuple(int(part) if part.isdecimal() and len(part) < 10 else part for part in dotted.split("."))


@cache
def fields_by_key(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """A section's fields by the keys that recipes use."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, or a single type, without annotations."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [one for member in get_args(annotation) for one in alternatives(member)]
    return [annotation]


def type_inside(annotation: Any, step: str | int) -> Any:
    """The type of a section's key, of a list's items or of a free mapping's values; None if there is none."""
    for one in alternatives(annotation):
        container = get_origin(one)
        if isinstance(step, int) and container is list:
            return get_args(one)[0]
        if isinstance(step, str) and container is dict:
            return get_args(one)[1]
        if isinstance(step, str) and _is_section(one) and (field := fields_by_key(one).get(step)):
            return field.annotation
    return None


def section_type(annotation: Any) -> type[BaseModel] | None:
    """The section among the alternatives of a type, None if there is none."""
    return next((one for one in alternatives(annotation) if _is_section(one)), None)


def section_at(path: KeyPath, root: type[BaseModel] = Recipe) -> type[BaseModel] | None:
    """The section at a key path, None if there is none."""
    annotation: Any = root
    for part in path:
        annotation = type_inside(annotation, part)
    return section_type(annotation)


@cache
def all_keys() -> tuple[tuple[str, ...], ...]:
    """Every key path of the schema; ``0`` stands for all items of a list. Free mappings are not entered."""
    return tuple(_walk(Recipe, ()))


def _walk(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, field in fields_by_key(section).items():
        here = (*path, key)
        yield here
        if inner := section_type(field.annotation):
            yield from _walk(inner, here)
        elif item := section_type(type_inside(field.annotation, 0)):
            yield from _walk(item, (*here, "0"))


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
