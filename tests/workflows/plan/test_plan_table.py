"""The words under the table of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sparsenmt.evaluation.metrics import statistics
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import PairedTest, compare_statistics
from sparsenmt.metric import METRICS
from sparsenmt.workflows.evaluation.reference_texts import TestText
from sparsenmt.workflows.plan.budget import Budget
from sparsenmt.workflows.plan.candidate import PlanCandidate
from sparsenmt.workflows.plan.elimination import Finding
from sparsenmt.workflows.plan.plan_table import PlanRow, PlanTable
from sparsenmt.workflows.plan.trials import PlanTrial

LINES = ["a cat sees a house", "the dog sleeps"]


def notes(*turns: Sequence[float], chosen: int, dropped: bool = False) -> list[str]:
    """The notes of a table of candidates with these speeds, of which the first is the reference."""
    (same,) = statistics(LINES, [LINES], ScoringOptions(("chrf",)).settings(language=None))
    (compared,) = compare_statistics([(same, same)], PairedTest())
    names = [PlanCandidate("half"), PlanCandidate("half").at("beam", 1), PlanCandidate("half").at("beam", 2)]
    rows = [
        PlanRow(name, PlanTrial(LINES, 9, [1.0] * len(own), list(own)), compared, Finding(tuple(own), 0.0), 10, {})
        for name, own in zip(names, turns, strict=False)
    ]
    seen = {row.candidate: (len(LINES) - (dropped and row is rows[-1]), row.finding) for row in rows}
    text = TestText("dev", Path("dev.en"), Path("dev.de"))
    table = PlanTable(text, METRICS["chrf"], ScoringOptions(("chrf",)), Budget(), rows, rows[chosen], True, set(), seen)
    return list(table.report().notes)


def test_more_errors_are_worse_and_are_told_as_they_are() -> None:
    """TER of the second candidate is higher: the words, the table and its rounds show the same difference."""
    metric, settings = METRICS["ter"], ScoringOptions(("ter",)).settings(language=None)
    outputs = (LINES, [LINES[0], "the dog"])
    best, worse = (statistics(lines, [LINES], settings)[0] for lines in outputs)
    compared = [compare_statistics([(each, best)], PairedTest())[0] for each in (best, worse)]
    names = [PlanCandidate("half"), PlanCandidate("half").at("beam", 1)]
    rows = [
        PlanRow(name, PlanTrial(lines, 9, [1.0], [1.0]), each, Finding((1.0,), -each.difference.value), 10, {})
        for name, lines, each in zip(names, outputs, compared, strict=True)
    ]
    lost = compared[1].difference.value
    seen = {row.candidate: (2, row.finding) for row in rows}
    text, scoring = TestText("dev", Path("dev.en"), Path("dev.de")), ScoringOptions(("ter",))
    table = PlanTable(text, metric, scoring, Budget("ter", 100.0), rows, rows[1], True, set(), seen)
    report = table.report()
    assert lost > 0 and report.notes[0].endswith(f"TER {lost:+.2f} from the best")
    assert [each.column("difference") for each in report.tables] == [[0.0, lost]] * 2
    assert rows[1].misses(Budget("ter", 0.5), metric) == [f"TER {lost:+.2f} from the best"]


def test_of_the_reference_no_speed_is_said() -> None:
    assert notes([0.92], chosen=0)[0] == "chosen: half: chrF2 +0.00 from the best"
    assert notes([1.0], [1.5], chosen=1)[0].startswith("chosen: half, beam 1: 1.50 times the speed of half, chrF2 ")


@pytest.mark.parametrize(
    ("turns", "chosen", "named"),
    [
        ([(1.0, 1.1), (1.5, 1.6)], 1, None),
        ([(1.0, 1.1), (1.0, 2.0)], 1, "half, beam 1 differ by 100%"),
        ([(1.0, 1.3), (1.2, 1.3)], 0, "half differ by 30%"),
        ([(1.0, 1.9), (1.5, 1.6)], 1, None),
    ],
    ids=["quiet", "the chosen", "the simplest", "another one"],
)
def test_a_large_spread_of_what_decides_is_warned_of(
    turns: list[tuple[float, float]], chosen: int, named: str | None
) -> None:
    warned = [note for note in notes(*turns, chosen=chosen) if note.startswith("warning: ")]
    assert len(warned) == (named is not None)
    assert named is None or f"the turns of {named}; use an idle machine, or more --rounds" in warned[0]


def test_the_footer_counts_and_tells_of_dropped_candidates() -> None:
    assert notes([1.0], chosen=0)[-1].endswith("tried: 1 candidate")
    assert notes([1.0], [1.5], chosen=1)[-1].endswith("tried: 2 candidates")
    assert notes([1.0], [1.5], chosen=1, dropped=True)[-1].endswith("2 candidates, 1 in 5 kept, at least 4")
