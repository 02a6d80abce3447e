"""JSON Schema of recipes and sweeps, by which editors complete keys and underline mistakes.

In draft 7, which the YAML servers of editors read. What is required is only required of a recipe without a base, which
has the rest. Values that belong together are checked by `recipe.checks` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from sparsenmt.recipe.key_paths import all_keys, fields_by_key, section_at, section_type
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.socket_methods import PLACE_KEYS, SOCKETS, Methods
from sparsenmt.recipe.sweep import SweepFile, VariantBlock

_DRAFT = "http://json-schema.org/draft-07/schema#"
_DEFINITIONS = "definitions"
_BASE = {
    "description": "Recipe that this one changes, or a list of them, the last one on top: paths from this folder.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}
_VARIABLE = {"type": "string", "pattern": r"\$\{"}


def recipe_schema(methods: Methods) -> dict[str, Any]:
    """The schema of recipe files.

    Args:
        methods: socket -> name of a method -> type of its options.
    """
    schema = _of(Recipe)
    definitions: dict[str, Any] = schema[_DEFINITIONS]
    for definition in definitions.values():
        definition.pop("required", None)  # a base may have the key
    for place, socket in SOCKETS.items():
        name = f"method at {socket}"
        definitions |= {name: _choice(socket, methods), **dict(_options(socket, methods))}
        _replace(schema, place, {"$ref": f"#/{_DEFINITIONS}/{name}"})
    del schema["required"]
    schema["properties"] = {"base": _BASE, **schema["properties"]}
    schema |= {"if": {"not": {"required": ["base"]}}, "then": _required(Recipe)}
    return {"$schema": _DRAFT, "title": "Recipe of sparsenmt", **_used(schema)}


def sweep_schema() -> dict[str, Any]:
    """The schema of sweep files. Values of the recipe's keys are not described: they may hold labels of the axes."""
    schema = _of(SweepFile)
    keys = {".".join(path): _described(path) for path in all_keys()}
    for section in (schema, schema[_DEFINITIONS][VariantBlock.__name__]):
        section["properties"]["set"]["properties"] = keys
    for key, value in schema[_DEFINITIONS][VariantBlock.__name__]["properties"].items():
        if "anyOf" in value:  # as in `updates: "${updates}"`
            value["anyOf"] = [*value["anyOf"], _VARIABLE]
        assert key in fields_by_key(VariantBlock)
    return {"$schema": _DRAFT, "title": "Sweep of sparsenmt", **schema}


def schema_text(schema: dict[str, Any]) -> str:
    """The file of a schema."""
    return f"{json.dumps(schema, indent=1, ensure_ascii=False)}\n"


def _of(section: type[BaseModel]) -> dict[str, Any]:
    """The schema of a section by its type, without what editors do not show."""
    made = section.model_json_schema(by_alias=True, ref_template=f"#/{_DEFINITIONS}/{{model}}")
    made[_DEFINITIONS] = made.pop("$defs", {})
    found: dict[str, Any] = _short(made)
    return found


def _short(value: Any, *, names: bool = False) -> Any:
    """Without titles, and without defaults that are sections. ``names``: the keys are those of a recipe."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _short(each, names=key in ("properties", _DEFINITIONS) and not names)
        for key, each in value.items()
        if names or not (key == "title" or (key == "default" and isinstance(each, dict | list)))
    }


def _choice(socket: str, methods: Methods) -> dict[str, Any]:
    """A method at a socket: its name decides about the other keys."""
    known = sorted(methods.get(socket, {}))
    return {
        "type": "object",
        "properties": {"name": {"enum": known, "description": "Name of a registered method."}},
        "allOf": [
            {
                "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
                "then": {"$ref": f"#/{_DEFINITIONS}/{socket} {name}"},
            }
            for name in known
        ],
    }


def _options(socket: str, methods: Methods) -> Iterator[tuple[str, dict[str, Any]]]:
    """The definitions of the methods at a socket, with those that their options need."""
    path = next(each for each, found in SOCKETS.items() if found == socket)
    for name, options in methods.get(socket, {}).items():
        made = _of(options)
        yield from made.pop(_DEFINITIONS).items()
        made.pop("required", None)
        own = section_at(tuple(0 if part == "#" else "cross" if part == "*" else part for part in path))
        keys = _of(own)["properties"] if own is not None else {}
        beside = {key: keys[key] for key in PLACE_KEYS.get(socket, ("name",))}
        yield f"{socket} {name}", {**made, "properties": {**beside, **made.get("properties", {})}}


def _replace(schema: dict[str, Any], place: tuple[str, ...], method: dict[str, Any]) -> None:
    """Put the schema of a socket's methods in the place of that of any method."""
    section = schema
    for part in place[:-1]:
        key = next(iter(section["properties"])) if part == "*" else part
        section = _inside(schema, section["properties"][key])
    if place[-1] == "#":
        section["items"] = method
        return
    before = section["properties"][place[-1]]
    allowed = {"anyOf": [method, {"type": "null"}]} if "anyOf" in before else {"allOf": [method]}
    section["properties"][place[-1]] = {"description": before["description"], **allowed}


def _inside(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference names; of an optional section, that of the section."""
    for each in (value, *value.get("anyOf", ()), *value.get("allOf", ())):
        if "$ref" in each:
            found: dict[str, Any] = schema[_DEFINITIONS][each["$ref"].rpartition("/")[2]]
            return found
    return value


def _required(section: type[BaseModel]) -> dict[str, Any]:
    """The required keys of a section, and of those in it that are required themselves."""
    fields = {key: field for key, field in fields_by_key(section).items() if field.is_required()}
    inner = {key: section_type(field.annotation) for key, field in fields.items()}
    found = {key: _required(each) for key, each in inner.items() if each is not None}
    return {"required": [*fields], **({"properties": found} if any(found.values()) else {})}


def _described(path: tuple[str, ...]) -> dict[str, Any]:
    section = section_at(tuple(int(part) if part.isdecimal() else part for part in path[:-1]))
    field = None if section is None else fields_by_key(section).get(path[-1])
    return {} if field is None or not field.description else {"description": field.description}


def _used(schema: dict[str, Any]) -> dict[str, Any]:
    """Without definitions that nothing refers to."""
    text = json.dumps(schema)
    kept = {name: each for name, each in schema[_DEFINITIONS].items() if f'"#/{_DEFINITIONS}/{name}"' in text}
    return {**schema, _DEFINITIONS: kept}
