"""The sockets of a recipe, and the check of the method names and options written there.

No method is named here: `load` receives the mapping from socket to method name to the type of the method's options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError

from sparsenmt.plugins.record import explain_missing
from sparsenmt.recipe.errors import Complaint, Problem, YamlOrigin, nearest, unknown_key
from sparsenmt.recipe.key_paths import KeyPath, fields_by_key
from sparsenmt.recipe.validation_errors import misread_booleans, validation_problems
from sparsenmt.recipe.yaml_tree import YamlNode, child, children, plain, tree

Methods = Mapping[str, Mapping[str, type[BaseModel]]]

# "*" stands for any key, "#" for any index.
SOCKETS: dict[tuple[str, ...], str] = {
    ("model", "attention", "*", "pattern"): "pattern",
    ("model", "attention", "*", "transform"): "transform",
    ("model", "attention", "*", "position"): "position",
    ("model", "attention", "*", "span"): "span",
    ("model", "attention", "*", "heads", "given"): "heads",
    ("model", "recurrence"): "recurrence",
    ("model", "memory", "#"): "memory",
    ("model", "depth"): "depth",
}
# Keys beside the method's options that belong to the socket.
PLACE_KEYS: dict[str, tuple[str, ...]] = {"memory": ("name", "at", "per")}


def socket_at(path: KeyPath) -> str | None:
    """The socket whose method mapping is at a key path, None for every other path."""
    for pattern, socket in SOCKETS.items():
        if len(pattern) == len(path) and all(
            expected == part
            or (expected == "*" and isinstance(part, str))
            or (expected == "#" and isinstance(part, int))
            for expected, part in zip(pattern, path, strict=True)
        ):
            return socket
    return None


def _method_mappings(recipe: YamlNode, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, YamlNode]]:
    """Yield every method mapping of the recipe: key path, socket, value."""
    socket = socket_at(path)
    if socket is not None and isinstance(recipe.value, dict):
        yield path, socket, recipe
        return
    for key, value in children(recipe):
        if path or key == "model":  # all sockets lie there
            yield from _method_mappings(value, (*path, key))


def method_names(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return socket and name of every method that a recipe chooses, as plain values."""
    found = _method_mappings(tree(dict(recipe), YamlOrigin("recipe")))
    return [(socket, str(plain(node)["name"])) for _, socket, node in found]


def _options(socket: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A method mapping without the keys of the socket."""
    return {key: value for key, value in mapping.items() if key not in PLACE_KEYS.get(socket, ("name",))}


def method_problems(recipe: YamlNode, methods: Methods) -> list[Problem]:
    """Unknown methods, unknown options, and options with wrong values."""
    problems: list[Problem] = []
    for path, socket, node in _method_mappings(recipe):
        name = child(node, "name")
        if name is None or not isinstance(name.value, str):
            continue  # the schema's own validation reports it
        if options_type := methods.get(socket, {}).get(name.value):
            problems += _option_problems(path, socket, node, name.value, options_type)
        else:
            problems.append(
                Problem(name.origin, (*path, "name"), partial(_unknown_method, name.value, socket, methods))
            )
    return problems


def _unknown_method(name: str, socket: str, methods: Methods) -> Complaint:
    known = sorted(methods.get(socket, {}))
    missing = explain_missing("method", f"{socket} {name}")
    if not known:
        return Complaint(
            f"there is no method '{name}': no method is registered for the socket `{socket}`",
            f"{missing}Leave the section out, or name the method's module in the variable SPARSENMT_PLUGINS.",
        )
    close = nearest(name, known)
    elsewhere = [other for other, names in methods.items() if other != socket and name in names]
    if elsewhere and not close:
        return Complaint(
            f"there is no {socket} method '{name}'",
            f"{missing}'{name}' belongs to the socket `{elsewhere[0]}`; {socket} methods are: {', '.join(known)}.",
        )
    return Complaint(
        f"there is no {socket} method '{name}'",
        f"{missing}{f'Did you mean `{close}`? ' if close else ''}Registered are: {', '.join(known)}."
        f"{'' if close else ' The module of another method is named in SPARSENMT_PLUGINS.'}",
    )


def _option_problems(
    path: KeyPath, socket: str, node: YamlNode, name: str, options_type: type[BaseModel]
) -> list[Problem]:
    options = _options(socket, plain(node))
    problems = []
    if options_type.model_config.get("extra") != "allow":
        valid = list(fields_by_key(options_type))
        known = [*valid, *PLACE_KEYS.get(socket, ())]
        for key in [key for key in options if key not in valid]:
            value = child(node, key)
            assert value is not None
            complaint = partial(unknown_key, key, path, known, of=f"the method '{name}'")
            problems.append(Problem(value.origin, (*path, key), complaint))
            del options[key]
    try:
        options_type.model_validate(options)
    except ValidationError as error:
        problems += validation_problems(error, node, path, options_type)
    return problems + misread_booleans(node, options_type, path)


def fill_defaults(recipe: Any, methods: Methods) -> Any:
    """The recipe, as plain values, with the default options of its methods written out.

    A stored recipe thus keeps its meaning when a default changes. Options stay as they were written if their type does
    not accept its own defaults; `younger` ones are written out where they are not the default.
    """
    for path, socket, _ in _method_mappings(tree(recipe, YamlOrigin("recipe"))):
        target: Any = recipe
        for key in path:
            target = target[key]
        options_type = methods.get(socket, {}).get(target["name"])
        if options_type is None:
            continue  # an unregistered default; written names were checked
        validated = options_type.model_validate(_options(socket, target))
        filled = validated.model_dump(mode="json", by_alias=True)
        try:
            is_stable = options_type.model_validate(filled) == validated
        except ValidationError:
            is_stable = False
        if is_stable:
            target.update(filled)
            for key in getattr(options_type, "younger", ()):
                if getattr(validated, key) == options_type.model_fields[key].default:
                    del target[key]
    return recipe
