"""YAML as recipes use it: the scalars of YAML 1.2's core schema, and what users are told about text that is no YAML.

The scalars are not those of PyYAML, which follows YAML 1.1: ``1e-3`` is a number, ``no`` is a text (the language code),
``true`` and ``false`` are the only booleans. Underscores may group the digits of whole numbers.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from sparsenmt.errors import UserError
from sparsenmt.recipe.problems import Complaint, shortened

Scalar = str | int | float | bool | None

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
    """SafeLoader's scanner and parser, with the core schema's scalars; only composing is used."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes what `_Loader` would read as something other than text."""


for _tag, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_STANDARD}{_tag}", _pattern, _first)


def write(value: Any) -> str:
    """Plain values as YAML that `compose` and `scalar` read back unchanged, keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1000)


def scalar(text: str, tag: str) -> tuple[Scalar, Complaint | None]:
    """The value of a scalar with this tag; or None and what is wrong with it."""
    kind = tag.removeprefix(_STANDARD)
    if kind == "str":
        if any("\ud800" <= one <= "\udfff" for one in text):
            return None, Complaint(
                f"{text!r} holds half of a character (a surrogate)", "Write the character itself, without an escape."
            )
        return text, None
    if kind not in _SCALARS or not tag.startswith(_STANDARD):
        return None, _foreign(tag)
    if not _SCALARS[kind][0].match(text):
        return None, Complaint(f"'{shortened(text)}' is not what its tag `!!{kind}` says", "Leave the tag out.")
    if kind == "null":
        return None, None
    if kind == "bool":
        return text.lower() == "true", None
    return _float(text) if kind == "float" else _int(text)


def _foreign(tag: str) -> Complaint:
    name = tag.replace(_STANDARD, "!!")
    return Complaint(f"the YAML tag `{shortened(name)}` cannot be used in a recipe", "Leave the tag out.")


def container_complaint(node: yaml.Node) -> Complaint | None:
    """What is wrong with the tag of a mapping or a list."""
    wanted = "map" if isinstance(node, yaml.MappingNode) else "seq"
    return None if node.tag == f"{_STANDARD}{wanted}" else _foreign(node.tag)


def _int(text: str) -> tuple[Scalar, Complaint | None]:
    digits = text.replace("_", "")
    # Python reads no more than some thousands of decimal digits at once.
    value = int(digits, 0 if digits[:2] in ("0o", "0x") else 10) if len(digits) < 100 else math.inf
    if abs(value) > _LARGEST:
        return None, Complaint(f"{shortened(text)} is too large", f"Whole numbers go up to {_LARGEST}.")
    return value, None


def _float(text: str) -> tuple[Scalar, Complaint | None]:
    lowered = text.lower()
    if lowered.endswith(".inf"):
        return -math.inf if lowered.startswith("-") else math.inf, None
    return math.nan if lowered == ".nan" else float(text), None


def compose(text: str, name: str) -> yaml.Node | None:
    """YAML's node graph of ``text``; None for a text without a value.

    Raises:
        UserError: it is no YAML; its place starts with ``name``.
    """
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what, hint = _syntax(error)
        raise UserError(what, where=where, hint=hint) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        raise UserError(
            f"broken YAML: the character U+{_code(error.character):04X} cannot stand here",
            where=f"{name}:{line}:{column}",
            hint='Remove it, or write it as an escape in double quotes; a recipe is plain text in UTF-8, like "a: 1".',
        ) from None
    except RecursionError:
        raise UserError(
            "broken YAML: it is nested too deeply", where=name, hint="Look for brackets that are never closed."
        ) from None


def _code(character: int | str | bytes) -> int:
    return character if isinstance(character, int) else ord(character)


def _syntax(error: yaml.MarkedYAMLError) -> Complaint:
    """The parser's complaint in a user's words."""
    problem, context = error.problem or "", error.context or ""
    start = error.context_mark.line + 1 if error.context_mark else 1
    if match := re.match(r"found character '(.+)' that cannot start any token", problem):
        return _character(match[1])
    if "mapping values are not allowed" in problem:
        return Complaint(
            "broken YAML: there is a second colon, or the line is indented too far",
            "Write `key: value` with a space after the colon, here and in the line above; begin the keys of a section "
            "in the same column; put a text that holds a colon into quotes.",
        )
    if "could not find expected ':'" in problem:
        return Complaint("broken YAML: a key without a colon", "Write `key: value`, with a space after the colon.")
    if "flow" in context:
        return Complaint(
            f"broken YAML: the bracket opened on line {start} is not closed, or a comma is missing",
            "Close it, put commas between the items, and put a text that holds brackets or commas into quotes.",
        )
    if "quoted scalar" in context and "end of stream" in problem:
        return Complaint(f"broken YAML: the quotation mark of line {start} is not closed", "Close it, or remove it.")
    if "found unknown escape character" in problem:
        return Complaint(
            f"broken YAML: the backslash before {problem.rpartition(' ')[2]} has no meaning",
            "Write the text in single quotes, or each backslash twice.",
        )
    if "<block end>" in problem:
        return Complaint(
            "broken YAML: the line is indented like none of those above it",
            "Begin the keys of one section in the same column.",
        )
    return _reference(problem, context, start)


def _character(character: str) -> Complaint:
    if character == "\\t":
        return Complaint(
            "broken YAML: a tab", "Indent with spaces: YAML takes no tabs; nor may one stand before a value."
        )
    return Complaint(f"broken YAML: a text cannot begin with {character}", "Put the text into quotes.")


def _reference(problem: str, context: str, start: int) -> Complaint:
    """Anchors, tags and documents; the last of `_syntax`."""
    if match := re.match(r"found undefined alias '(.+)'", problem):
        return Complaint(
            f"broken YAML: there is no anchor `&{match[1]}`",
            "Define it above this line, or put a text that begins with * into quotes.",
        )
    if "second occurrence" in problem:
        return Complaint(
            f"broken YAML: an anchor that line {start} defines is defined again", "Give one of them another name."
        )
    if "another document" in problem:
        return Complaint(
            "broken YAML: a second document begins here", "Remove the line `---`: a recipe is one document."
        )
    return Complaint(
        f"broken YAML: {problem or context or 'it cannot be parsed'}",
        "Write `key: value`, indent with spaces, and put texts that hold other signs than letters into quotes.",
    )
