"""What is wrong with a recipe: problems are collected, and shown together in one `UserError`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.errors import UserError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Origin:
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


@dataclass(frozen=True)
class Problem:
    """One thing that the user has to mend: where it was written, the key it concerns, what is wrong in plain words."""

    origin: Origin
    path: KeyPath
    message: str

    def __str__(self) -> str:
        key = f"{dotted(self.path)}: " if self.path else ""
        return f"{self.origin.place}: {key}{self.message}"


def dotted(path: KeyPath) -> str:
    """A key path as overrides write it: ``model.memory.0.at``."""
    return ".".join(str(part) for part in path)


def raise_together(problems: Iterable[Problem], recipe: str) -> None:
    """Raise one `UserError` that shows all of ``problems``, by file and line, overrides last; none: return."""
    unique = sorted(dict.fromkeys(problems), key=_reading_order)
    if not unique:
        return
    if len(unique) == 1:
        raise UserError(str(unique[0]))
    lines = "".join(f"\n  {problem}" for problem in unique)
    raise UserError(f"{recipe} has {len(unique)} problems:{lines}")


def _reading_order(problem: Problem) -> tuple[bool, str, int]:
    origin = problem.origin
    if origin.is_override:
        return True, "", 0  # in the order of the command line
    return False, origin.place.removesuffix(f":{origin.line}"), origin.line


def show(value: object) -> str:
    """A value as the user wrote it, short enough for a message."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}'" if len(value) <= 60 else f"'{value[:57]}...'"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, Sequence):
        return "a list"
    return str(value)
