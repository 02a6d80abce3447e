"""YAML files as trees of values, each of which knows the file and the line where it was written.

The scalars are those of YAML 1.2's core schema, not those of PyYAML, which follows YAML 1.1: ``1e-3`` is a number,
``no`` is a text (the language code), ``true`` and ``false`` are the only booleans. Underscores may group the digits of
whole numbers.
"""

from __future__ import annotations

import functools
import math
import numbers
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparsenmt.errors import UNSAFE, UserError
from sparsenmt.recipe.errors import Complaint, Problem, YamlOrigin, raise_together, shortened
from sparsenmt.recipe.key_paths import KeyPath
from sparsenmt.storage.files import without_mark

_MAX_BYTES = 1_000_000  # of a file
_MAX_VALUES = 100_000  # of a file, with its aliases expanded
_MAX_DEPTH = 50
_MAX_KEPT = 30_000  # characters of a text that stays parsed

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class YamlNode:
    """A value with its origin. Nodes are shared and never changed in place."""

    value: Scalar | dict[str, YamlNode] | list[YamlNode]
    origin: YamlOrigin


def plain(node: YamlNode) -> Any:
    """The value without origins: dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def tree(value: Any, origin: YamlOrigin) -> YamlNode:
    """The inverse of `plain`, with the same origin for all values. Paths become texts."""
    if isinstance(value, Mapping):
        return YamlNode({str(key): tree(child, origin) for key, child in value.items()}, origin)
    if isinstance(value, (list, tuple)):
        return YamlNode([tree(child, origin) for child in value], origin)
    if isinstance(value, Path):
        value = str(value)
    elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
        value = int(value)  # of a library, such as NumPy's
    return YamlNode(value, origin)


def mapping(node: YamlNode | None) -> dict[str, YamlNode]:
    """The values of a mapping by key; empty for everything else."""
    return node.value if node is not None and isinstance(node.value, dict) else {}


def items(node: YamlNode | None) -> list[YamlNode]:
    """The items of a list; empty for everything else."""
    return node.value if node is not None and isinstance(node.value, list) else []


def children(node: YamlNode) -> Iterable[tuple[str | int, YamlNode]]:
    """The values of a mapping with their keys, or the items of a list with their indices."""
    return [*mapping(node).items(), *enumerate(items(node))]


def child(node: YamlNode | None, key: str | int) -> YamlNode | None:
    """The value of a key or at an index, None if there is none."""
    if isinstance(key, str):
        return mapping(node).get(key)
    values = items(node)
    return values[key] if 0 <= key < len(values) else None


def find(node: YamlNode, path: KeyPath) -> YamlNode | None:
    """The value at ``path``, None if there is none."""
    current: YamlNode | None = node
    for key in path:
        current = child(current, key)
    return current


def nearest_origin(node: YamlNode, path: KeyPath) -> YamlOrigin:
    """Origin of the value at ``path`` or, if there is none, of the innermost section around it."""
    around = (find(node, path[:length]) for length in range(len(path), -1, -1))
    return next(each.origin for each in around if each is not None)


def replace_all(node: YamlNode, changes: Mapping[KeyPath, YamlNode | None]) -> YamlNode:
    """``node`` with other values at existing paths, each section copied once; None removes a key of a mapping.

    A path inside another one of ``changes`` has no effect.
    """
    inside: dict[str | int, dict[KeyPath, YamlNode | None]] = {}
    whole: dict[str | int, YamlNode | None] = {}
    for path, new in changes.items():
        if len(path) == 1:
            whole[path[0]] = new
        else:
            inside.setdefault(path[0], {})[path[1:]] = new

    def changed(key: str | int, value: YamlNode) -> YamlNode | None:
        if key in whole:
            return whole[key]
        return replace_all(value, inside[key]) if key in inside else value

    if isinstance(node.value, dict):
        values = {key: changed(key, value) for key, value in node.value.items()}
        return YamlNode({key: value for key, value in values.items() if value is not None}, node.origin)
    found = [changed(index, value) for index, value in enumerate(items(node))]
    assert None not in found
    return YamlNode([value for value in found if value is not None], node.origin)


# Files


def read(path: Path) -> tuple[YamlNode, list[Problem]]:
    """Read a recipe file: a mapping, and the problems found on the way (repeated keys, foreign tags).

    Raises:
        UserError: the file is missing, not UTF-8, empty, not YAML, or not a mapping.
    """
    where = str(path)
    raw = without_mark(_read_bytes(path), where)
    try:
        text = raw.decode()
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
    """The contents of a file that is no larger than a recipe may be."""
    where = str(path)
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise UserError(
                "this is a directory, not a recipe", where=where, hint="Name the recipe's file, e.g. recipe.yaml."
            )
        return read_limited(path)
    except FileNotFoundError:
        hint = "Check the path of the recipe."
        raise UserError("there is no such file", where=where, hint=hint, missing=path) from None
    except OSError as error:
        raise UserError(
            f"the recipe cannot be read: {error.strerror}", where=where, hint="Check its path and its permissions."
        ) from None


def read_limited(path: Path, opener: Callable[[str, int], int] | None = None) -> bytes:
    """The contents of a file that is no larger than a recipe may be; OSError if it cannot be read.

    Args:
        opener: as for `open`; a recipe on the command line may be a pipe.

    Raises:
        UserError: it is larger.
    """
    with open(path, "rb", opener=opener) as stream:
        raw = stream.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise UserError(
            f"the file is larger than {_MAX_BYTES:,} bytes", where=str(path), hint="Name a recipe: a short YAML file."
        )
    return raw


def parse(text: str, *, name: str, folder: Path) -> tuple[YamlNode | None, list[Problem]]:
    """Parse YAML; None for a text without a value.

    Raises:
        UserError: invalid YAML, with file, line and column; or more values than a recipe may have.
    """
    composed = _compose(text, name)
    if composed is None:
        return None, []
    conversion = _Conversion(name, folder)
    node = conversion.node(composed, YamlOrigin(name, folder))
    return node, conversion.problems


def parse_plain(text: str, *, name: str) -> Any:
    """The values of a YAML text that `write` made, without origins.

    Raises:
        UserError: as `parse`; or the text has what `write` never writes, such as repeated keys or foreign tags.
    """
    node, problems = parse(text, name=name, folder=Path())
    raise_together(problems, name)
    return None if node is None else plain(node)


@dataclass
class _Conversion:
    """The conversion of PyYAML's nodes to `YamlNode`; a wrong value becomes an empty one and a problem."""

    name: str
    folder: Path
    problems: list[Problem] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _values: int = 0

    def origin(self, composed: yaml.Node) -> YamlOrigin:
        line = composed.start_mark.line + 1
        return YamlOrigin(f"{self.name}:{line}", self.folder, line=line)

    def node(self, composed: yaml.Node, origin: YamlOrigin, path: KeyPath = ()) -> YamlNode:
        self._values += 1
        if self._values > _MAX_VALUES:
            raise UserError(
                f"the recipe has more than {_MAX_VALUES:,} values",
                where=self.name,
                hint="Name a recipe; if it is one, use fewer aliases (*name): they multiply each other.",
            )
        if id(composed) in self._open:
            complaint = Complaint("an alias refers to a value that contains it", "Write the value out, without alias.")
            return self._empty(origin, path, complaint)
        if len(path) > _MAX_DEPTH:
            complaint = Complaint(f"sections are nested more than {_MAX_DEPTH} deep", "Remove brackets or indentation.")
            return self._empty(origin, path[:3], complaint)
        self._open.add(id(composed))
        try:
            return self._inner(composed, origin, path)
        finally:
            self._open.discard(id(composed))

    def _inner(self, composed: yaml.Node, origin: YamlOrigin, path: KeyPath) -> YamlNode:
        if isinstance(composed, yaml.ScalarNode):
            value, complaint = _scalar(composed.value, composed.tag)
            return YamlNode(value, origin) if complaint is None else self._empty(origin, path, complaint)
        kind = "map" if isinstance(composed, yaml.MappingNode) else "seq"
        if composed.tag != f"{_STANDARD}{kind}":
            return self._empty(origin, path, _foreign_tag(composed.tag))
        if isinstance(composed, yaml.MappingNode):
            return YamlNode(self._mapping(composed, path), origin)
        composed_items = enumerate(composed.value)
        return YamlNode([self.node(item, self.origin(item), (*path, i)) for i, item in composed_items], origin)

    def _empty(self, origin: YamlOrigin, path: KeyPath, complaint: Complaint) -> YamlNode:
        self.problems.append(Problem(origin, path, complaint))
        return YamlNode(None, origin)

    def _mapping(self, composed: yaml.MappingNode, path: KeyPath) -> dict[str, YamlNode]:
        result: dict[str, YamlNode] = {}
        for key_node, value_node in composed.value:
            # The origin of a value is the line of its key: of a section, the line that names it.
            origin = self.origin(key_node)
            key, complaint = _key(key_node)
            if key in result:
                first = result[key].origin.place
                complaint = Complaint(f"the key occurs twice, first at {first}", "Keep one of the two.")
            if complaint is not None:
                self.problems.append(Problem(origin, (*path, key) if key else path, complaint))
                continue
            result[key] = self.node(value_node, origin, (*path, key))
        return result


def _key(node: yaml.Node) -> tuple[str, Complaint | None]:
    """The text of a key ('' if it has none), and what is wrong with it."""
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        return "", Complaint("a key must be a plain word", "Write `key: value`; put texts with braces into quotes.")
    key = str(node.value)
    if key == "<<":
        return key, Complaint(
            "YAML's merge key `<<` cannot be used in a recipe",
            "Write the keys out, or move what recipes share into a file and name it as their `base`.",
        )
    if not key.isprintable():
        return key, Complaint("a key contains an unprintable character", "Write the key again, in plain letters.")
    return key, None


# Scalars

_NUMBER = list("-+.0123456789")
_SCALARS = {
    "bool": (re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    "int": (re.compile(r"^(?:[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$"), _NUMBER),
    "float": (
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        _NUMBER,
    ),
    "null": (re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
}
_LARGEST = 2**63 - 1
_STANDARD = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """SafeLoader's scanner and parser with the core schema's scalars; only composing is used."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes texts that `_Loader` would read as other scalars."""


def _quoted_if_unsafe(dumper: _Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar(f"{_STANDARD}str", text, style='"' if UNSAFE.search(text) else None)


_Dumper.add_representer(str, _quoted_if_unsafe)
for _tag, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_STANDARD}{_tag}", _pattern, _first)


def write(value: Any) -> str:
    """Plain values as YAML that `parse` reads back unchanged, with the keys in their order."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1000)
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04X}", str(text))


def _scalar(text: str, tag: str) -> tuple[Scalar, Complaint | None]:
    """The value of a scalar with this tag; or None and a complaint."""
    kind = tag.removeprefix(_STANDARD)
    if kind == "str":
        if any("\ud800" <= one <= "\udfff" for one in text):
            return None, Complaint(
                f"{text!r} contains half of a character (a surrogate)",
                "Write the character itself, without an escape.",
            )
        return text, None
    if kind not in _SCALARS or not tag.startswith(_STANDARD):
        return None, _foreign_tag(tag)
    if not _SCALARS[kind][0].match(text):
        return None, Complaint(f"'{shortened(text)}' does not fit its tag `!!{kind}`", "Remove the tag.")
    if kind == "null":
        return None, None
    if kind == "bool":
        return text.lower() == "true", None
    return _float(text) if kind == "float" else _int(text)


def _foreign_tag(tag: str) -> Complaint:
    name = tag.replace(_STANDARD, "!!")
    return Complaint(f"the YAML tag `{shortened(name)}` cannot be used in a recipe", "Remove the tag.")


def _int(text: str) -> tuple[Scalar, Complaint | None]:
    digits = text.replace("_", "")
    # Python limits the decimal digits that it converts.
    value = int(digits, 0 if digits[:2] in ("0o", "0x") else 10) if len(digits) < 100 else math.inf
    if abs(value) > _LARGEST:
        return None, Complaint(f"{shortened(text)} is too large", f"Whole numbers go up to {_LARGEST}.")
    return value, None


def _float(text: str) -> tuple[Scalar, Complaint | None]:
    lowered = text.lower()
    if lowered.endswith(".inf"):
        return -math.inf if lowered.startswith("-") else math.inf, None
    return math.nan if lowered == ".nan" else float(text), None


# Invalid YAML


def _compose(text: str, name: str) -> yaml.Node | None:
    """PyYAML's node graph of ``text``, None without a value; UserError, at ``name``, for invalid YAML."""
    try:
        return _composed(text) if len(text) <= _MAX_KEPT else yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what, hint = _syntax_complaint(error)
        raise UserError(what, where=where, hint=hint) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise UserError(
            f"invalid YAML: the character U+{code:04X} is not allowed here",
            where=f"{name}:{line}:{column}",
            hint='Remove it, or write it as an escape in double quotes; a recipe is plain text in UTF-8, like "a: 1".',
        ) from None
    except RecursionError:
        raise UserError(
            "invalid YAML: it is nested too deeply", where=name, hint="Look for brackets that are never closed."
        ) from None


@functools.lru_cache(maxsize=8)
def _composed(text: str) -> yaml.Node | None:
    """Compose a text once: a command reads the recipe of a model directory several times."""
    return yaml.compose(text, Loader=_Loader)


def _syntax_complaint(error: yaml.MarkedYAMLError) -> Complaint:
    """The parser's error in a user's words."""
    problem, context = error.problem or "", error.context or ""
    start = error.context_mark.line + 1 if error.context_mark else 1
    if match := re.match(r"found character '(.+)' that cannot start any token", problem):
        if match[1] == "\\t":
            return Complaint("invalid YAML: a tab", "Use spaces, in the indentation and before values.")
        return Complaint(f"invalid YAML: a text cannot begin with {match[1]}", "Put the text into quotes.")
    if "mapping values are not allowed" in problem:
        return Complaint(
            "invalid YAML: there is a second colon, or the line is indented too far",
            "Write `key: value` with a space after the colon, here and in the line above; begin the keys of a section "
            "in the same column; put a text that contains a colon into quotes.",
        )
    if "could not find expected ':'" in problem:
        return Complaint("invalid YAML: a key without a colon", "Write `key: value`, with a space after the colon.")
    if "flow" in context:
        return Complaint(
            f"invalid YAML: the bracket opened on line {start} is not closed, or a comma is missing",
            "Close it, put commas between the items, and put a text that contains brackets or commas into quotes.",
        )
    if "quoted scalar" in context and "end of stream" in problem:
        return Complaint(f"invalid YAML: the quotation mark of line {start} is not closed", "Close it, or remove it.")
    if "found unknown escape character" in problem:
        return Complaint(
            f"invalid YAML: the backslash before {problem.rpartition(' ')[2]} has no meaning",
            "Write the text in single quotes, or double each backslash.",
        )
    if "<block end>" in problem:
        return Complaint(
            "invalid YAML: the indentation fits no line above", "Begin the keys of one section in the same column."
        )
    return _reference_complaint(problem, context, start)


def _reference_complaint(problem: str, context: str, start: int) -> Complaint:
    """The remaining cases of `_syntax_complaint`: anchors, documents and unknown errors."""
    if match := re.match(r"found undefined alias '(.+)'", problem):
        return Complaint(
            f"invalid YAML: there is no anchor `&{match[1]}`",
            "Define it above this line, or put a text that begins with * into quotes.",
        )
    if "second occurrence" in problem:
        return Complaint(
            f"invalid YAML: an anchor that line {start} defines is defined again", "Give one of them another name."
        )
    if "another document" in problem:
        return Complaint(
            "invalid YAML: a second document begins here", "Remove the line `---`: a recipe is one document."
        )
    return Complaint(
        f"invalid YAML: {problem or context or 'it cannot be parsed'}",
        "Write `key: value`, indent with spaces, and put texts that contain signs other than letters into quotes.",
    )
