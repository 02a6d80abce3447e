"""YAML in which every value knows the file and line it was written in.

The scalars follow YAML 1.2's core schema, not PyYAML's 1.1: ``1e-3`` is a number, ``no`` is a text (the language code),
``true`` and ``false`` are the only booleans. Underscores may group the digits of whole numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparsenmt.errors import UserError
from sparsenmt.recipe.problems import KeyPath, Origin, Problem

Scalar = str | int | float | bool | None

_NUMBER = list("-+.0123456789")
_INT = re.compile(r"^(?:[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")


class _Loader(yaml.SafeLoader):
    """SafeLoader's scanner and parser, with the core schema's scalars; only composing is used."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes what `_Loader` would read as something other than text."""


for _tag, _pattern, _first in (
    ("bool", _BOOL, list("tTfF")),
    ("int", _INT, _NUMBER),
    ("float", _FLOAT, _NUMBER),
    ("null", _NULL, ["~", "n", "N", ""]),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _first)


@dataclass(frozen=True)
class Node:
    """A value of a recipe with its origin. Nodes are shared and never changed in place."""

    value: Scalar | dict[str, Node] | list[Node]
    origin: Origin


def plain(node: Node) -> Any:
    """The value without origins: dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def tree(value: Any, origin: Origin) -> Node:
    """The reverse of `plain`: every value gets the same origin."""
    if isinstance(value, dict):
        return Node({str(key): tree(child, origin) for key, child in value.items()}, origin)
    if isinstance(value, (list, tuple)):
        return Node([tree(child, origin) for child in value], origin)
    return Node(value, origin)


def child(node: Node, key: str | int) -> Node | None:
    """The value under one key or index, None where there is none."""
    if isinstance(node.value, dict):
        return node.value.get(key) if isinstance(key, str) else None
    if isinstance(node.value, list) and isinstance(key, int) and 0 <= key < len(node.value):
        return node.value[key]
    return None


def find(node: Node, path: KeyPath) -> Node | None:
    """The value at ``path``, None where there is none."""
    current: Node | None = node
    for key in path:
        if current is None:
            return None
        current = child(current, key)
    return current


def nearest_origin(node: Node, path: KeyPath) -> Origin:
    """Origin of the value at ``path`` or, where there is none, of the innermost section around it."""
    origin = node.origin
    current: Node | None = node
    for key in path:
        current = child(current, key) if current is not None else None
        if current is None:
            break
        origin = current.origin
    return origin


def replace(node: Node, path: KeyPath, new: Node | None) -> Node:
    """``node`` with the existing value at ``path`` replaced; None, for a key of a mapping, leaves the key out."""
    key, rest = path[0], path[1:]
    if isinstance(node.value, dict) and isinstance(key, str):
        inner = replace(node.value[key], rest, new) if rest else new
        items = {name: inner if name == key else value for name, value in node.value.items()}
        return Node({name: value for name, value in items.items() if value is not None}, node.origin)
    assert isinstance(node.value, list) and isinstance(key, int)
    changed = replace(node.value[key], rest, new) if rest else new
    assert changed is not None
    return Node([*node.value[:key], changed, *node.value[key + 1 :]], node.origin)


def read(path: Path) -> tuple[Node, list[Problem]]:
    """Read a recipe file: a mapping, and the problems found on the way (repeated keys, foreign tags).

    Raises:
        UserError: the file is missing, not UTF-8, empty, not YAML, or not a mapping.
    """
    where = str(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UserError("there is no such file", where=where) from None
    except OSError as error:
        raise UserError(f"the recipe cannot be read: {error.strerror}", where=where) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError("the recipe is not UTF-8", where=f"{where}:{line}") from None
    node, problems = parse(text, name=where, folder=path.parent)
    if node is None:
        raise UserError("the recipe is empty", where=where)
    if not isinstance(node.value, dict):
        raise UserError(
            "a recipe must be a mapping of keys to values",
            where=where,
            hint="Its first line is something like `name: my-run`.",
        )
    return node, problems


def parse(text: str, *, name: str, folder: Path) -> tuple[Node | None, list[Problem]]:
    """Parse YAML; None for a text without a value.

    Raises:
        UserError: broken YAML, with file, line and column.
    """
    composed = compose(text, name)
    if composed is None:
        return None, []
    conversion = _Conversion(name, folder)
    node = conversion.node(composed, Origin(name, folder))
    return node, conversion.problems


def compose(text: str, name: str) -> yaml.Node | None:
    """YAML's node graph of ``text``; errors as `UserError` whose place starts with ``name``."""
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = error.problem or error.context or "it cannot be parsed"
        hint = "Indent with spaces: YAML takes no tabs." if "'\\t'" in what else None
        raise UserError(f"broken YAML: {what}", where=where, hint=hint) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        raise UserError("broken YAML: a control character", where=f"{name}:{line}:{column}") from None


@dataclass
class _Conversion:
    """Turns YAML's nodes into `Node`, collecting problems."""

    name: str
    folder: Path
    problems: list[Problem] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)

    def origin(self, composed: yaml.Node) -> Origin:
        line = composed.start_mark.line + 1
        return Origin(f"{self.name}:{line}", self.folder, line=line)

    def node(self, composed: yaml.Node, origin: Origin, path: KeyPath = ()) -> Node:
        if id(composed) in self._open:
            self.problems.append(Problem(origin, path, "an alias refers to the value that it stands in"))
            return Node(None, origin)
        self._open.add(id(composed))
        try:
            if isinstance(composed, yaml.MappingNode) and composed.tag.endswith(":map"):
                return Node(self._mapping(composed, path), origin)
            if isinstance(composed, yaml.SequenceNode) and composed.tag.endswith(":seq"):
                items = enumerate(composed.value)
                return Node([self.node(item, self.origin(item), (*path, i)) for i, item in items], origin)
            return Node(self._scalar(composed, origin, path), origin)
        finally:
            self._open.discard(id(composed))

    def _mapping(self, composed: yaml.MappingNode, path: KeyPath) -> dict[str, Node]:
        result: dict[str, Node] = {}
        for key_node, value_node in composed.value:
            # A key's line is the origin of its value: of a section, the line that names it.
            origin = self.origin(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(origin, path, "a key must be a plain word"))
                continue
            key = str(key_node.value)
            if key in result:
                first = result[key].origin.place
                self.problems.append(Problem(origin, (*path, key), f"the key stands here twice, first at {first}"))
                continue
            result[key] = self.node(value_node, origin, (*path, key))
        return result

    def _scalar(self, composed: yaml.Node, origin: Origin, path: KeyPath) -> Scalar:
        text, tag = composed.value, composed.tag.removeprefix("tag:yaml.org,2002:")
        try:
            if tag == "str":
                return str(text)
            if tag == "null":
                return None
            if tag == "bool":
                return str(text).lower() == "true"
            if tag == "int":
                return _whole(str(text))
            if tag == "float":
                return _number(str(text))
        except (ValueError, AttributeError):
            pass
        self.problems.append(Problem(origin, path, f"the YAML tag `{composed.tag}` cannot be used in a recipe"))
        return None


def _whole(text: str) -> int:
    digits = text.replace("_", "")
    if digits[:2] in ("0o", "0x"):
        return int(digits, 0)
    return int(digits)


def _number(text: str) -> float:
    lowered = text.lower()
    if lowered.endswith(".inf"):
        return -math.inf if lowered.startswith("-") else math.inf
    return math.nan if lowered == ".nan" else float(text)


def write(value: Any) -> str:
    """Plain values as YAML that `parse` reads back unchanged, keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1000)
