"""Recipe files as values, each of which knows the file and the line it was written in."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparsenmt.errors import UserError
from sparsenmt.recipe.problems import Complaint, KeyPath, Problem, YamlOrigin
from sparsenmt.recipe.syntax import Scalar, compose, container_complaint, scalar

_MAX_BYTES = 1_000_000  # of a file
_MAX_VALUES = 100_000  # that a file's aliases may grow to
_MAX_DEPTH = 50


@dataclass(frozen=True)
class Node:
    """A value of a recipe with its origin. Nodes are shared and never changed in place."""

    value: Scalar | dict[str, Node] | list[Node]
    origin: YamlOrigin


def plain(node: Node) -> Any:
    """The value without origins: dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def tree(value: Any, origin: YamlOrigin) -> Node:
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


def nearest_origin(node: Node, path: KeyPath) -> YamlOrigin:
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
    raw = _read_bytes(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            "the recipe is not UTF-8", where=f"{where}:{line}", hint="Name a text file, and save it as UTF-8."
        ) from None
    node, problems = parse(text, name=where, folder=path.parent)
    if node is None or node.value is None:
        raise UserError("the recipe is empty", where=where, hint="Begin it with a line like `name: my-run`.")
    if not isinstance(node.value, dict):
        raise UserError(
            "a recipe must be a mapping of keys to values",
            where=where,
            hint="Begin it with a line like `name: my-run`, with a space after the colon.",
        )
    return node, problems


def _read_bytes(path: Path) -> bytes:
    """The file's contents; never more than a recipe may have."""
    where = str(path)
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise UserError(
                "this is a directory, not a recipe", where=where, hint="Name the recipe's file, e.g. recipe.yaml."
            )
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError("there is no such file", where=where, hint="Check the path of the recipe.") from None
    except OSError as error:
        raise UserError(
            f"the recipe cannot be read: {error.strerror}", where=where, hint="Check its path and its permissions."
        ) from None
    if len(raw) > _MAX_BYTES:
        raise UserError(
            f"the file is larger than {_MAX_BYTES:,} bytes", where=where, hint="Name a recipe: a short YAML file."
        )
    return raw


def parse(text: str, *, name: str, folder: Path) -> tuple[Node | None, list[Problem]]:
    """Parse YAML; None for a text without a value.

    Raises:
        UserError: broken YAML, with file, line and column; or more values than any recipe has.
    """
    composed = compose(text, name)
    if composed is None:
        return None, []
    conversion = _Conversion(name, folder)
    node = conversion.node(composed, YamlOrigin(name, folder))
    return node, conversion.problems


@dataclass
class _Conversion:
    """Turns YAML's nodes into `Node`, collecting problems; what is wrong becomes an empty value."""

    name: str
    folder: Path
    problems: list[Problem] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _values: int = 0

    def origin(self, composed: yaml.Node) -> YamlOrigin:
        line = composed.start_mark.line + 1
        return YamlOrigin(f"{self.name}:{line}", self.folder, line=line)

    def node(self, composed: yaml.Node, origin: YamlOrigin, path: KeyPath = ()) -> Node:
        self._values += 1
        if self._values > _MAX_VALUES:
            raise UserError(
                f"the recipe has more than {_MAX_VALUES:,} values",
                where=self.name,
                hint="Name a recipe; if it is one, its aliases (*name) multiply each other: write fewer.",
            )
        if id(composed) in self._open:
            return self._empty(
                origin,
                path,
                Complaint("an alias refers to the value that it stands in", "Write the value out, without the alias."),
            )
        if len(path) > _MAX_DEPTH:
            return self._empty(
                origin,
                path[:3],
                Complaint(f"sections in sections, more than {_MAX_DEPTH} deep", "Remove the brackets or the indents."),
            )
        self._open.add(id(composed))
        try:
            return self._inner(composed, origin, path)
        finally:
            self._open.discard(id(composed))

    def _inner(self, composed: yaml.Node, origin: YamlOrigin, path: KeyPath) -> Node:
        if isinstance(composed, yaml.ScalarNode):
            value, complaint = scalar(composed.value, composed.tag)
            return Node(value, origin) if complaint is None else self._empty(origin, path, complaint)
        if complaint := container_complaint(composed):
            return self._empty(origin, path, complaint)
        if isinstance(composed, yaml.MappingNode):
            return Node(self._mapping(composed, path), origin)
        items = enumerate(composed.value)
        return Node([self.node(item, self.origin(item), (*path, i)) for i, item in items], origin)

    def _empty(self, origin: YamlOrigin, path: KeyPath, complaint: Complaint) -> Node:
        self.problems.append(Problem(origin, path, complaint))
        return Node(None, origin)

    def _mapping(self, composed: yaml.MappingNode, path: KeyPath) -> dict[str, Node]:
        result: dict[str, Node] = {}
        for key_node, value_node in composed.value:
            # A key's line is the origin of its value: of a section, the line that names it.
            origin = self.origin(key_node)
            key, complaint = _key(key_node)
            if key in result:
                first = result[key].origin.place
                complaint = Complaint(f"the key stands here twice, first at {first}", "Keep one of the two.")
            if complaint is not None:
                self.problems.append(Problem(origin, (*path, key) if key else path, complaint))
                continue
            result[key] = self.node(value_node, origin, (*path, key))
        return result


def _key(node: yaml.Node) -> tuple[str, Complaint | None]:
    """The text of a key ('' if it has none), and what is wrong with it."""
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        return "", Complaint("a key must be a plain word", "Write `key: value`; put braces that are text into quotes.")
    key = str(node.value)
    if key == "<<":
        return key, Complaint(
            "YAML's merge key `<<` cannot be used in a recipe",
            "Write the keys out, or put what recipes share into a file that they name as `base`.",
        )
    if not key.isprintable():
        return key, Complaint("a key holds a character that cannot be shown", "Write the key again, in plain letters.")
    return key, None
