"""What is wrong with a recipe: problems are collected, and shown together in one `UserError`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparsenmt.errors import UserError, printable

KeyPath = tuple[str | int, ...]

_LONGEST = 60  # characters of a value or a key in a message
_MOST = 20  # problems that are shown


@dataclass(frozen=True)
class YamlOrigin:
    """Where a value was written.

    Args:
        place: the text shown to the user, e.g. ``recipe.yaml:12`` or ``override 'training.seed=2'``.
        folder: what relative corpus paths written here are relative to; None = they are left as they are.
        is_override: the value comes from the command line.
        line: the line in the file, from 1; 0 where there is none.
    """

    place: str
    folder: Path | None = None
    is_override: bool = False
    line: int = 0


class Complaint(NamedTuple):
    """What is wrong with a value, as a part of a sentence, and what to do about it, in sentences."""

    message: str
    hint: str


@dataclass(frozen=True)
class Problem:
    """One thing that the user has to mend: where it was written, the key it concerns, the complaint."""

    origin: YamlOrigin
    path: KeyPath
    complaint: Complaint

    @property
    def where(self) -> str:
        """File, line and key."""
        return f"{self.origin.place}: {dotted(self.path)}" if self.path else self.origin.place

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.complaint.message}. {self.complaint.hint}")


def dotted(path: KeyPath) -> str:
    """A key path as overrides write it: ``model.memory.0.at``."""
    return ".".join(shortened(printable(str(part))) or "''" for part in path)


def raise_together(problems: Iterable[Problem], recipe: str) -> None:
    """Raise one `UserError` that shows all of ``problems``, by file and line, overrides last; none: return."""
    unique = sorted(dict.fromkeys(problems), key=_reading_order)
    if not unique:
        return
    if len(unique) == 1:
        message, hint = unique[0].complaint
        raise UserError(printable(message), where=unique[0].where, hint=printable(hint))
    lines = [f"\n  {problem}" for problem in unique[:_MOST]]
    if len(unique) > _MOST:
        lines.append(f"\n  ... and {len(unique) - _MOST:,} more")
    raise UserError(
        f"{len(unique):,} problems:{''.join(lines)}",
        where=recipe,
        hint="Mend them all; `sparsenmt recipe-docs` lists every key with its values and its default.",
    )


def _reading_order(problem: Problem) -> tuple[bool, str, int]:
    origin = problem.origin
    if origin.is_override:
        return True, "", 0  # in the order of the command line
    return False, origin.place.removesuffix(f":{origin.line}"), origin.line


def shortened(text: str) -> str:
    """The text, or its beginning if it is long."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def show(value: object) -> str:
    """A value as the user wrote it, short enough for a message."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{shortened(value)}'"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, Sequence):
        return "a list"
    return shortened(str(value))
