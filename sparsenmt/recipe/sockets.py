"""Where methods are plugged into a recipe, and the check of their names and options.

No method is named here: `load` receives the mapping from socket to method name to the type of the method's options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from sparsenmt.recipe.origins import Node, child, plain, tree
from sparsenmt.recipe.problems import Complaint, KeyPath, Problem, YamlOrigin
from sparsenmt.recipe.suggestions import nearest, unknown_key
from sparsenmt.recipe.translation import misread_booleans, translate

Methods = Mapping[str, Mapping[str, type[BaseModel]]]

# "*" stands for any key, "#" for any index.
SOCKETS: dict[tuple[str, ...], str] = {
    ("model", "attention", "*", "pattern"): "pattern",
    ("model", "attention", "*", "transform"): "transform",
    ("model", "attention", "*", "heads", "given"): "heads",
    ("model", "memory", "#"): "memory",
    ("model", "depth"): "depth",
}
# Keys beside the method's options that belong to the socket.
PLACE_KEYS: dict[str, tuple[str, ...]] = {"memory": ("name", "at", "per")}


def socket_at(path: KeyPath) -> str | None:
    """The socket that a key path is the method mapping of, None for every other key."""
    for pattern, socket in SOCKETS.items():
        if len(pattern) == len(path) and all(
            expected == part
            or (expected == "*" and isinstance(part, str))
            or (expected == "#" and isinstance(part, int))
            for expected, part in zip(pattern, path, strict=True)
        ):
            return socket
    return None


def plugged(recipe: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, Node]]:
    """Every method mapping that stands in the recipe: key path, socket, value."""
    socket = socket_at(path)
    if socket is not None and isinstance(recipe.value, dict):
        yield path, socket, recipe
    elif isinstance(recipe.value, dict):
        for key, value in recipe.value.items():
            yield from plugged(value, (*path, key))
    elif isinstance(recipe.value, list):
        for index, value in enumerate(recipe.value):
            yield from plugged(value, (*path, index))


def split_options(socket: str, mapping: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A method mapping as (keys of the socket, options of the method)."""
    own = PLACE_KEYS.get(socket, ("name",))
    return {k: v for k, v in mapping.items() if k in own}, {k: v for k, v in mapping.items() if k not in own}


def method_problems(recipe: Node, methods: Methods) -> list[Problem]:
    """Unknown methods, unknown options, and options with bad values."""
    problems: list[Problem] = []
    for path, socket, node in plugged(recipe):
        name = child(node, "name")
        if name is None or not isinstance(name.value, str):
            continue  # the schema's own validation reports it
        known = methods.get(socket, {})
        if name.value not in known:
            problems.append(Problem(name.origin, (*path, "name"), _unknown_method(name.value, socket, methods)))
            continue
        problems += _option_problems(path, socket, node, known[name.value])
    return problems


def _unknown_method(name: str, socket: str, methods: Methods) -> Complaint:
    known = sorted(methods.get(socket, {}))
    if not known:
        return Complaint(
            f"there is no method '{name}': no method is registered for the socket `{socket}`",
            "Leave the section out, or name the method's module in the environment variable SPARSENMT_PLUGINS.",
        )
    close = nearest(name, known)
    elsewhere = [other for other, names in methods.items() if other != socket and name in names]
    if elsewhere and not close:
        return Complaint(
            f"there is no {socket} method '{name}'",
            f"'{name}' belongs to the socket `{elsewhere[0]}`; {socket} methods are: {', '.join(known)}.",
        )
    return Complaint(
        f"there is no {socket} method '{name}'",
        f"{f'Did you mean `{close}`? ' if close else ''}Registered are: {', '.join(known)}.",
    )


def _option_problems(path: KeyPath, socket: str, node: Node, options_type: type[BaseModel]) -> list[Problem]:
    own, options = split_options(socket, plain(node))
    valid = [field.alias or key for key, field in options_type.model_fields.items()]
    problems = []
    if options_type.model_config.get("extra") != "allow":
        for key in [key for key in options if key not in valid]:
            value = child(node, key)
            assert value is not None
            here = [*valid, *PLACE_KEYS.get(socket, ())]
            complaint = unknown_key(key, path, here, of=f"the method '{own['name']}'")
            problems.append(Problem(value.origin, (*path, key), complaint))
            del options[key]
    try:
        options_type.model_validate(options)
    except ValidationError as error:
        problems += translate(error, node, path, options_type)
    return problems + misread_booleans(node, options_type, path)


def fill_defaults(recipe: Any, methods: Methods) -> Any:
    """The recipe as plain values with the default options of its methods written out.

    So a stored recipe keeps its meaning when a default changes. Options whose type does not take its own defaults back
    stay as they were written.
    """
    for path, socket, _ in plugged(tree(recipe, YamlOrigin("recipe"))):
        target: Any = recipe
        for key in path:
            target = target[key]
        options_type = methods.get(socket, {}).get(target["name"])
        if options_type is None:
            continue  # a default method that nobody registered; written ones were checked
        validated = options_type.model_validate(split_options(socket, target)[1])
        filled = validated.model_dump(mode="json", by_alias=True)
        try:
            takes_back = options_type.model_validate(filled) == validated
        except ValidationError:
            takes_back = False
        if takes_back:
            target.update(filled)
    return recipe
