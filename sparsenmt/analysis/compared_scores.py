"""Scores of a system, each with its comparison with a baseline, as the reports on groups of sentences list them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import BOOTSTRAP, Comparison, PairedTest, compare
from sparsenmt.metric import METRICS
from sparsenmt.report.tables import Value, columns

SCORE_COLUMNS = columns("number score difference low high p", "hidden number sacrebleu_p")
"""The columns of `ComparedScore.cells`."""


@dataclass(frozen=True)
class ComparedScore:
    """A score by one metric, and its comparison with the baseline, if there is one."""

    metric: str
    score: float
    signature: str
    comparison: Comparison | None

    @property
    def cells(self) -> tuple[Value, ...]:
        """The cells of a table row: the score, and the difference with its 95% interval and p-value."""
        found = {} if self.comparison is None else self.comparison.record()
        return self.score, *map(found.get, ("difference", "low", "high", "p_value", "sacrebleu_p"))


def compared_scores(
    lines: Sequence[str],
    references: Sequence[str],
    baseline: Sequence[str] | None,
    settings: ScoringSettings,
    test: PairedTest = BOOTSTRAP,
) -> list[ComparedScore]:
    """Score translations, and compare them with a baseline.

    Args:
        baseline: None: nothing is compared.

    Raises:
        UserError: as for `corpus_scores` and `compare`.
    """
    scores = corpus_scores(lines, [references], settings)
    compared: dict[str, Comparison] = {}
    if baseline is not None:
        tests = compare(lines, baseline, [references], settings, test)
        compared = {one.name: one for one in tests}
    return [ComparedScore(each.name, each.value, each.signature, compared.get(each.name)) for each in scores]


def test_note(scores: Iterable[ComparedScore], test: PairedTest) -> str:
    """Return the test of the comparisons in words."""
    return test.describe(each.comparison.segments for each in scores if each.comparison)


def signature_notes(scores: Iterable[ComparedScore]) -> tuple[str, ...]:
    """Return a note with the signature of every metric."""
    return tuple(dict.fromkeys(f"{METRICS[each.metric].label}: {each.signature}" for each in scores))
