"""The tables and the plot of a plan: what was measured on the whole text, what before, and what was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import BOOTSTRAP, Comparison
from sparsenmt.metric import Metric
from sparsenmt.report.plots import Panel, Points, curves, describe
from sparsenmt.report.tables import Report, Table, Value, columns, shown_if
from sparsenmt.workflows.evaluation.reference_texts import TestText
from sparsenmt.workflows.plan.budget import Budget, limit_text
from sparsenmt.workflows.plan.candidate import PlanCandidate
from sparsenmt.workflows.plan.elimination import FEWEST_KEPT, RATE, Finding
from sparsenmt.workflows.plan.trials import PlanTrial

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.figure import Figure

_NOISY = 0.2  # the spread from which on times are too noisy to choose by


@dataclass(frozen=True)
class PlanRow:
    """The measurements of a candidate on the whole text.

    Args:
        compared: with the best candidate.
        size: bytes of its model directory.
        over: measure -> (value, limit), of the limits that it exceeds.
    """

    candidate: PlanCandidate
    trial: PlanTrial
    compared: Comparison
    finding: Finding
    size: int
    over: Mapping[str, tuple[float, float]]

    @property
    def tokens_per_second(self) -> float:
        """Target tokens a second, of the fastest turn."""
        return self.trial.tokens / min(self.trial.seconds)

    @property
    def spread(self) -> float | None:
        """The excess of the largest speed of a turn over the smallest, as a share; None for one turn."""
        speeds = self.finding.speeds
        return max(speeds) / min(speeds) - 1 if len(speeds) > 1 else None

    def from_best(self, metric: Metric) -> str:
        """Return the difference from the best candidate in words."""
        return f"{metric.label} {self.compared.difference.value:+.2f} from the best"

    def misses(self, budget: Budget, metric: Metric) -> list[str]:
        """Return in words what of a budget is missed."""
        lost = [self.from_best(metric)] if self.finding.shortfall(budget.loss) else []
        return lost + [
            f"{name} {limit_text(name, value)}, allowed {limit_text(name, most)}"
            for name, (value, most) in self.over.items()
        ]


@dataclass(frozen=True)
class PlanTable:
    """The results of a plan.

    Args:
        rows: of the whole text.
        chosen: what was chosen, or comes nearest to the budget.
        front: the candidates that none dominates in quality and speed.
        seen: candidate -> lines, and its measurement in the last round in which it was tried.
    """

    text: TestText
    metric: Metric
    scoring: ScoringOptions
    budget: Budget
    rows: Sequence[PlanRow]
    chosen: PlanRow
    meets: bool
    front: set[PlanCandidate]
    seen: Mapping[PlanCandidate, tuple[int, Finding]]

    def report(self, training: Sequence[str] = ()) -> Report:
        """Make the report; ``training``: commands of the steps that need training."""
        settings = {
            "text": self.text.name,
            **self.scoring.record(),
            "loss": self.budget.loss,
            **self.budget.limits,
            "chosen": str(self.chosen.candidate),
            "meets": self.meets,
        }
        notes = (*self._verdict(), *self._noise(), *self._notes(), *(f"training: {each}" for each in training))
        return Report("plan", (self._pareto(), self._rounds()), notes, settings)

    def _pareto(self) -> Table:
        """Return the table of the whole text, the fastest first."""
        heads = columns(
            *("text candidate mark", f"score {self.metric.name} difference low high", "rate tokens", "score speed"),
            *("share spread", "score latency_ms memory_mb size_mb", "hidden text misses"),
        )
        rows = []
        for row in sorted(self.rows, key=lambda each: -each.finding.speed):
            marks = ["chosen" if self.meets else "nearest"] if row is self.chosen else []
            marks += ["front"] if row.candidate in self.front else []
            difference, latency, memory = row.compared.difference, row.trial.latency, row.trial.memory
            values: tuple[Value, ...] = (
                *(str(row.candidate), " ".join(marks), row.compared.system.value),
                *(difference.value, difference.low, difference.high),
                *(row.tokens_per_second, row.finding.speed, row.spread),
                *(latency and 1000 * latency, memory and memory / 1e6, row.size / 1e6),
                "; ".join(row.misses(self.budget, self.metric)) or None,
            )
            rows.append(values)
        size = f"{len(self.rows[0].trial.translations):,} lines"
        return Table("pareto", f"{self.text.name}, {size}: quality and cost", heads, tuple(rows))

    def _rounds(self) -> Table:
        """Return the table of all candidates, with their last measurement."""
        heads = columns("text candidate", "count lines", "number difference error speed", "share excess")
        sign = -1 if self.metric.lower_is_better else 1  # a finding's difference is positive if it is better
        rows = tuple(
            (str(each), lines, sign * found.difference, found.error, found.speed, found.excess)
            for each, (lines, found) in self.seen.items()
        )
        return Table("rounds", "all candidates, on the most lines on which they were tried", heads, rows, listed=False)

    def _verdict(self) -> Iterator[str]:
        """Yield the choice in words."""
        row = self.chosen
        if self.meets:
            gain = f"{row.finding.speed:.2f} times the speed of {self.rows[0].candidate}, "
            gain = "" if row is self.rows[0] else gain  # beside itself: noise alone
            yield f"chosen: {row.candidate}: {gain}{row.from_best(self.metric)}"
        else:
            missed = "; ".join(row.misses(self.budget, self.metric))
            yield f"nothing meets the budget; nearest: {row.candidate}: {missed}"
        equal = [
            str(each.candidate)
            for each in self.rows
            if each is not row
            and self.meets
            and each.finding.meets(self.budget.loss)
            and each.finding.equals(row.finding)
        ]
        if equal:
            yield f"as fast within the spread of the turns: {'; '.join(equal)}"

    def _notes(self) -> Iterator[str]:
        """Yield notes that explain the columns."""
        yield f"difference: {self.metric.label} less that of the best, 95% interval ({BOOTSTRAP})"
        reference, count, whole = self.rows[0].candidate, len(self.seen), len(self.rows[0].trial.translations)
        yield f"speed: times that of {reference} beside it, median of the turns; its own is noise: it is timed twice"
        yield "tokens: target tokens a second, in the fastest turn"
        dropped = any(lines < whole for lines, _ in self.seen.values())
        kept = f", 1 in {RATE} kept, at least {FEWEST_KEPT}" if dropped else ""
        yield f"memory: peak of the process; tried: {count:,} candidate{'' if count == 1 else 's'}{kept}"

    def _noise(self) -> Iterator[str]:
        """Yield a warning if the turns of the chosen candidate, or of the fastest within the budget, differ much."""
        good = [row for row in self.rows if row.finding.meets(self.budget.loss)]
        if not good:
            return
        decisive = (self.chosen, max(good, key=lambda each: each.finding.speed))
        spread, name = max((row.spread or 0.0, str(row.candidate)) for row in decisive)
        if spread > _NOISY:
            advice = "use an idle machine, or more --rounds"
            yield f"warning: times are too noisy to choose by: the turns of {name} differ by {spread:.0%}; {advice}"

    def draw(self) -> Figure:
        """Draw quality against speed."""
        label = self.metric.label
        groups: dict[str, list[PlanRow]] = {}
        for row in self.rows:
            chosen, kept = ("chosen" if self.meets else "nearest"), row.candidate in self.front
            groups.setdefault(chosen if row is self.chosen else "front" if kept else "dominated", []).append(row)
        series: dict[str, Points] = {
            name: [(row.finding.speed, row.compared.system.value) for row in rows] for name, rows in groups.items()
        }
        best = self.rows[0].compared.baseline.value
        loss = self.budget.loss if self.metric.lower_is_better else -self.budget.loss
        level = (f"worst {label} within the budget", best + loss)
        words = f"speed (times that of {self.rows[0].candidate})"
        panel = Panel(words, f"{label} on {self.text.name}", series, style="points", level=level)
        return describe(curves([panel]), f"plan: {label} against speed\n{self.chosen.candidate}")


def dry_run_report(
    axes: Sequence[tuple[str, str, str]], rounds: Sequence[tuple[int, int, int, str]], total: str
) -> Report:
    """Return the report of a plan that was not run.

    Args:
        axes: model, axis and the values beside that of the recipe.
        rounds: number, lines, candidates at most, and time of each round.
        total: the time of all rounds in words.
    """
    heads = columns(shown_if(len({model for model, _, _ in axes}) > 1, "text model"), "text axis values")
    tables = (
        Table("axes", "tried beside the recipe's own choice", heads, axes),
        Table("rounds", "rounds", columns("count round lines candidates", "text time"), rounds),
    )
    notes = (f"about {total}, if every candidate is as slow as the reference, which was timed", "nothing was written")
    return Report("plan", tables, notes)
