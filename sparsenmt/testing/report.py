"""The result of a check as lines of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from sparsenmt.process.progress import duration
from sparsenmt.testing.kit import CheckResult


def lines(result: CheckResult) -> Iterator[str]:
    """Yield a line for each rule, then what does not hold, each with the script of its smallest case."""
    width = max(len(outcome.rule.name) for outcome in result.outcomes)
    yield f"{result.method.title}"
    for outcome in result.outcomes:
        cases = f" in {outcome.cases} case{'' if outcome.cases == 1 else 's'}" if outcome.cases else ""
        yield f"  {outcome.rule.name:{width}}  {outcome.status}{cases}"
    for outcome in result.broken:
        yield ""
        yield from textwrap.wrap(f"{outcome.rule.name}: {outcome.rule.sentence}", 100)
        yield from textwrap.wrap(outcome.message or "", 100, initial_indent="  ", subsequent_indent="  ")
        yield "The smallest case that shows it:"
        yield ""
        yield from textwrap.indent(outcome.script or "", "    ").rstrip("\n").split("\n")
        yield ""
    count = len(result.broken)
    verdict = "all rules hold" if not count else f"{count} rule{'s do' if count > 1 else ' does'} not hold"
    verdict += "" if result.paired else "; pairs with other methods were not tried"
    yield f"{result.method.title}: {verdict} ({duration(result.seconds)})"
