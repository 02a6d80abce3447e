"""A mutant: a replacement in a source that some tests must notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A replacement in a source, and the tests that must fail: files, or single tests of them."""

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


def mutants_of(file: str, tests: str | Sequence[str], *changes: tuple[str, str, str]) -> Iterator[Mutant]:
    """Make the mutants of a file that the same tests kill; each change is a name, the old text and the new one."""
    every = (tests,) if isinstance(tests, str) else tests
    return (Mutant(name, file, old, new, every) for name, old, new in changes)
