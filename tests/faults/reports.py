"""What became of faults: judging how a command ended, and counting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.faults.server import Result
from tests.faults.world import Files, differences

Finding = tuple[str, str]
"""``lost``, ``wrong`` or ``other``, and what was found."""


@dataclass
class Report:
    """What became of the cases of one situation."""

    name: str
    points: int = 0
    """Places where a fault was tried: calls that change a file, or files at rest."""
    cases: int = 0
    lost: list[str] = field(default_factory=list)
    """Something that was complete is gone."""
    wrong: list[str] = field(default_factory=list)
    """A command ended well with another result than without the fault."""
    other: list[str] = field(default_factory=list)
    """Exit codes, messages, leftovers, commands that cannot be repeated."""

    def add(self, where: str, findings: Iterable[Finding]) -> None:
        """Note what was found."""
        for kind, text in findings:
            getattr(self, kind).append(f"{self.name}: {where}: {text}")

    @property
    def failures(self) -> list[str]:
        """All findings, the kind first."""
        return [f"{kind}: {text}" for kind in ("lost", "wrong", "other") for text in getattr(self, kind)]


def table(title: str, places: str, reports: Sequence[Report]) -> str:
    """The reports as a table in Markdown, with a sum."""
    rows = [
        [title, places, "cases", "lost", "wrong", "other"],
        ["---", "--:", "--:", "--:", "--:", "--:"],
        *([each.name, *_counts([each])] for each in reports),
        ["all", *_counts(reports)],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _counts(reports: Sequence[Report]) -> list[str]:
    numbers = [(r.points, r.cases, len(r.lost), len(r.wrong), len(r.other)) for r in reports]
    return [f"{sum(column):,}" for column in zip((0,) * 5, *numbers, strict=True)]


def refusal(result: Result, *names: str) -> list[Finding]:
    """What is wrong with how a command refuses: exit code 2, one message, no traceback, one of the names in it."""
    problems = []
    if result.code != 2:
        problems.append(f"exit code {result.code}: {first_line(result.err)}")
    if "Traceback" in result.out + result.err:
        problems.append(f"a traceback: {result.err.strip()[-300:]}")
    if len(re.findall(r"(?i)^error: ", result.err, re.MULTILINE)) != 1:
        problems.append(f"not one message: {result.err.strip()[-300:]!r}")
    if names and not any(name in result.err for name in names):
        problems.append(f"{names[0]} is not named: {first_line(result.err)}")
    return [("other", problem) for problem in problems]


def first_line(err: str) -> str:
    """The message of a command that failed."""
    lines = [line for line in err.split("\n") if re.match(r"(?i)error: ", line)]
    return (lines or [err.strip()])[0][-300:]


def compare(when: str, expected: Files, found: Files) -> list[Finding]:
    """Other contents are wrong data; hidden leftovers, and a checkpoint that the rotation has left, are only untidy."""
    wrong, untidy = [], []
    for line in differences(expected, found):
        (untidy if re.match(r"\+ ((.*/)?\.|model/checkpoints/update-)", line) else wrong).append(line)
    kinds = (("wrong", wrong, "the result differs"), ("other", untidy, "leftovers"))
    return [(kind, f"{when} {what}: {lines[:4]}") for kind, lines, what in kinds if lines]
