"""The choice of a model's weights by validation, among means of a run's last checkpoints and the best single one.

The mean of the last N checkpoints (Vaswani et al. 2017, section 6.1) helps where they are all near the end of training.
In a short run, or one whose learning rate is still high, the oldest of them spoil it; how many are too many, only
validation says. A single checkpoint that was validated in training is not validated again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.recipe.schema import Recipe
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.training.checkpoints import Checkpoint, average_weights, damaged_among
from sparsenmt.training.loop import Validate
from sparsenmt.training.state import ValidationResult
from sparsenmt.training.validation import best_updates, rank


@dataclass(frozen=True)
class Candidate:
    """Checkpoints whose mean may become the model, oldest first, and the values of its validation by name."""

    checkpoints: tuple[Checkpoint, ...]
    values: Mapping[str, float]

    @property
    def updates(self) -> list[int]:
        """The updates of the checkpoints, rising."""
        return [checkpoint.update for checkpoint in self.checkpoints]

    @property
    def name(self) -> str:
        """A short name, for lists."""
        return f"last {len(self.updates)}" if self.updates[1:] else f"update {self.updates[0]}"


@dataclass(frozen=True)
class CheckpointChoice:
    """The candidates for the weights of a model, and the one that is taken.

    Args:
        candidates: a single one, which is not validated, where there is no choice.
        shown: names of the values that decide.
        best: the update of the best validation, whose checkpoint may be lost; empty: there is none.
        tokenizer: `Progress.tokenizer`: that of the metric, the first of ``shown``.
    """

    candidates: tuple[Candidate, ...]
    taken: Candidate
    shown: tuple[str, ...] = ()
    best: tuple[int, ...] = ()
    tokenizer: str | None = None

    @classmethod
    def of(cls, checkpoints: Sequence[Checkpoint]) -> CheckpointChoice:
        """Return the mean of checkpoints as the only candidate."""
        only = Candidate(tuple(checkpoints), {})
        return cls((only,), only)

    def describe(self) -> str:
        """Return what is taken and why, for a message."""
        updates = ", ".join(map(str, self.taken.updates))
        taken = f"the mean of {len(self.taken.updates)} checkpoints, updates {updates}"
        if len(self.taken.updates) == 1:
            taken = self.taken.name
        others = [f"{each.name}: {self._values(each)}" for each in self.candidates if each is not self.taken]
        if others:
            taken += f": the best on the validation text, {self._values(self.taken)} ({'; '.join(others)})"
        lost = [update for update in self.best if all([update] != each.updates for each in self.candidates)]
        return taken + "".join(f"; the best single one, update {update}, was not kept" for update in lost)

    def _values(self, candidate: Candidate) -> str:
        """Return the values of a candidate that decide, each after its name, for a message."""
        first = "" if self.tokenizer is None else f" ({self.tokenizer})"
        labels = dict(zip(self.shown, [self.shown[0] + first, *self.shown[1:]], strict=True))
        return ", ".join(f"{label} {candidate.values[name]:.3f}" for name, label in labels.items())

    def record(self) -> dict[str, Any] | None:
        """Return the choice for the manifest; None if there was only one candidate."""
        if not self.candidates[1:]:
            return None
        candidates = []
        for each in self.candidates:
            finite = {name: value if math.isfinite(value) else None for name, value in each.values.items()}
            candidates.append({"updates": each.updates, "values": finite})
        named = {} if self.tokenizer is None else {"tokenizer": self.tokenizer}
        return {"taken": self.taken.updates, "by": list(self.shown), **named, "candidates": candidates}

    def report(self) -> Report:
        """Return the candidates as a table."""
        names = list(self.taken.values)
        rows = [
            (
                *(each.name, ", ".join(map(str, each.updates))),
                *(each.values[name] for name in names),
                "taken" if each is self.taken else "",
            )
            for each in self.candidates
        ]
        heads = (*columns("text checkpoints updates", f"number {' '.join(names)}"), *columns("text choice"))
        notes = () if self.tokenizer is None else (f"{self.shown[0]}: by the tokenizer {self.tokenizer}",)
        return Report("average", (Table("average", "means of checkpoints on the validation text", heads, rows),), notes)


def mean_sizes(last: int) -> list[int]:
    """Return the numbers of checkpoints in the means that are tried: 1, 2, 4, ... and ``last`` itself."""
    return [2**power for power in range(last.bit_length()) if 2**power < last] + ([last] if last else [])


def choose(
    found: Sequence[Checkpoint],
    sizes: Iterable[int],
    validated: Sequence[ValidationResult],
    recipe: Recipe,
    validate: Validate,
    *,
    tokenizer: str | None = None,
) -> CheckpointChoice:
    """Choose the best on the validation text: of the means of the newest checkpoints and of the best single one.

    The best is that of `training.validation.rank`, so that targets of auxiliary losses count before quality; ties go to
    the single checkpoint, then to fewer checkpoints.

    Args:
        found: all checkpoints of the run, oldest first.
        sizes: numbers of newest checkpoints.
        validated: validations of the run, which are not repeated.
        validate: measures a mean.
        tokenizer: `Progress.tokenizer` of the run.
    """
    metric, losses = recipe.training.validation.metric, recipe.losses
    present, known = {each.update: each for each in found}, {each.update: each.values for each in validated}
    best = best_updates([each for each in validated if each.update in present], metric, 1, losses)
    groups = dict.fromkeys([*((present[update],) for update in best), *(tuple(found[-size:]) for size in sizes)])
    values = {group: known[group[0].update] for group in groups if not group[1:] and group[0].update in known}
    missing = [group for group in groups if group not in values]
    with progress_bar("validate means", len(missing), unit="mean") as advance:
        for group in missing:
            values[group] = validate(average_weights(group))
            advance(1)
    candidates = tuple(Candidate(group, values[group]) for group in groups)
    taken = min(candidates, key=lambda each: rank(each.values, metric, losses))
    targets = [f"{name}_closed" for name, loss in losses.items() if loss.target is not None]
    last = tuple(best_updates(validated, metric, 1, losses))
    return CheckpointChoice(candidates, taken, (metric, *targets), last, tokenizer)


def warn_of_damage(model: Path, last: int, others: Sequence[int] = ()) -> list[str]:
    """Warn of damaged checkpoints that weights are without; returns the warnings.

    Args:
        last: number of the newest checkpoints that belong to the weights.
        others: updates of others that do.
    """
    damaged = damaged_among(model, last, others)
    warnings = [f"the checkpoint of update {update} is damaged: the weights are without it" for update in damaged]
    for warning in warnings:
        notify(f"warning: {model}: {warning}")
    return warnings
