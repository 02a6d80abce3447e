"""The schema as key paths: which keys a section has, and where in the recipe a key belongs."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparsenmt.recipe.problems import KeyPath
from sparsenmt.recipe.schema import Recipe


def key_of(name: str, field: FieldInfo) -> str:
    """The key of a field as recipes write it."""
    return field.alias or name


def fields_by_key(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """A section's fields by the keys that recipes use."""
    return {key_of(name, field): field for name, field in section.model_fields.items()}


def alternatives(annotation: Any) -> list[Any]:
    """The types that a union (or a single type) consists of, without annotations."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [one for member in get_args(annotation) for one in alternatives(member)]
    return [annotation]


def section_type(annotation: Any, step: str | int | None = None) -> type[BaseModel] | None:
    """The section that a value is, or (with ``step``: a key or index) that the items of a list or free mapping are."""
    for one in alternatives(annotation):
        container = get_origin(one)
        if step is None and isinstance(one, type) and issubclass(one, BaseModel):
            return one
        if isinstance(step, int) and container is list:
            return section_type(get_args(one)[0])
        if isinstance(step, str) and container is dict:
            return section_type(get_args(one)[1])
    return None


def section_at(path: KeyPath, root: type[BaseModel] = Recipe) -> type[BaseModel] | None:
    """The section at a key path, None if there is none."""
    section: type[BaseModel] | None = root
    pending: Any = None
    for part in path:
        if pending is not None:
            section, pending = section_type(pending, part), None
        else:
            field = fields_by_key(section).get(part) if section and isinstance(part, str) else None
            if field is None:
                return None
            section = section_type(field.annotation)
            is_container = any(get_origin(one) in (list, dict) for one in alternatives(field.annotation))
            if is_container:
                pending = field.annotation
        if section is None and pending is None:
            return None
    return section if pending is None else None


@cache
def all_keys() -> tuple[tuple[str, ...], ...]:
    """Every key path of the schema; the first item stands for all items of a list. Free mappings are not entered."""
    return tuple(_walk(Recipe, ()))


def _walk(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, field in fields_by_key(section).items():
        here = (*path, key)
        yield here
        inner = section_type(field.annotation)
        item = section_type(field.annotation, 0)
        if inner is not None:
            yield from _walk(inner, here)
        elif item is not None:
            yield from _walk(item, (*here, "0"))
