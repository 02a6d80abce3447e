"""The grid search over the classifier's hyperparameters; an interrupted search resumes after the last completed cell.

Its directory holds ``search.json`` (sealed), with everything that the search depends on and the results of the cells
that are done, and the weights of the best one of each size (layers and heads).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsenmt.depth_selector.labels import LabelledSentences
from sparsenmt.depth_selector.training import (
    Hyperparameters,
    SelectorTrainingSettings,
    TrainedWeights,
    Trial,
    train_classifier,
)
from sparsenmt.errors import UserError
from sparsenmt.storage.files import make_directories
from sparsenmt.storage.kept_work import AGAIN, KeptWork
from sparsenmt.storage.tensors import load_tensors, save_tensors

_RECORD = "search.json"


@dataclass(frozen=True)
class _SearchRecord:
    """The record of completed trials."""

    trials: list[Trial]


class HyperparameterSearch:
    """A grid search and its completed trials.

    Args:
        directory: of the search; it must hold nothing else.
        task: everything that a trial depends on, as JSON; trials of another task are not used.
        cells: the hyperparameters to try.
    """

    def __init__(self, directory: Path, task: Mapping[str, Any], cells: Sequence[Hyperparameters]) -> None:
        self._directory = directory
        self._kept = KeptWork(directory / _RECORD, task, _SearchRecord)
        self._cells = list(cells)
        self.trials: list[Trial] = []
        """The completed trials."""
        self.again: str | None = None
        """The reason why the trials of an earlier run cannot be used, if it left some."""
        make_directories(directory)
        self.again = self._recover()
        self._remove_leftovers()

    def _recover(self) -> str | None:
        """Read the completed trials; returns the reason why they cannot be used."""
        sizes = set[tuple[int, int]]()
        if not self._kept.path.exists():
            return None
        try:
            record, differences = self._kept.read()
            if differences:
                return differences
            own = {cell: cell for cell in self._cells}  # the same cell may be written with 1 and with 1.0
            candidates = best_of_sizes(record.trials)
            if candidates[0].cell not in own:
                return "the best combination so far is not in the grid"
            for best in candidates:
                weights = self._weights(replace(best, cell=own.get(best.cell, best.cell)))
                if best.cell in own and weights.exists():  # otherwise this size is trained again
                    load_tensors(weights, hint=AGAIN)
                    sizes.add(best.cell.size)
        except (UserError, IndexError):  # there are no trials
            return "the record of completed trials is damaged"
        trials = [trial for trial in record.trials if trial.cell in own and trial.cell.size in sizes]
        self.trials = [replace(trial, cell=own[trial.cell]) for trial in trials]
        return None

    def run(
        self,
        settings: SelectorTrainingSettings,
        training: LabelledSentences,
        validation: LabelledSentences,
        embeddings: Tensor,
        *,
        advance: Callable[[int], object] | None = None,
    ) -> list[TrainedWeights]:
        """Train a classifier for every cell that is not done; returns the best trial of each size and its weights.

        The size with the least loss comes first.

        Args:
            embeddings: (V, D) the model's source embeddings.
            advance: is told the number of epochs that are done or not needed.

        Raises:
            UserError: no cell has a finite loss.
        """
        done = {trial.cell for trial in self.trials}
        for cell in self._cells:
            if cell in done:
                continue
            trial, weights = train_classifier(cell, settings, training, validation, embeddings, advance=advance)
            self.trials.append(trial)
            if trial in best_of_sizes(self.trials):
                save_tensors(self._weights(trial), weights)
            self._kept.write(trials=[asdict(each) for each in self.trials])
            self._remove_leftovers()
        finite = [trial for trial in best_of_sizes(self.trials) if math.isfinite(trial.loss)]
        if not finite:
            raise UserError(
                "the classifier's training has diverged for all hyperparameters",
                where="--learning-rate",
                hint="Lower it.",
            )
        return [(trial, load_tensors(self._weights(trial), hint=AGAIN)) for trial in finite]

    def _weights(self, trial: Trial) -> Path:
        return self._directory / f"{trial.cell.key}.safetensors"

    def _remove_leftovers(self) -> None:
        """Remove all files except the record and the weights of the best trial of each size."""
        kept = {_RECORD, *(self._weights(each).name for each in best_of_sizes(self.trials))} if self.trials else set()
        for path in self._directory.iterdir():
            if path.is_file() and path.name not in kept:
                path.unlink()


def best_of_sizes(trials: Sequence[Trial]) -> list[Trial]:
    """Return the best trial of each number of layers and heads, the least loss first; of equal ones the first."""
    found: dict[tuple[int, int], Trial] = {}
    for trial in sorted(trials, key=lambda trial: trial.loss):
        found.setdefault(trial.cell.size, trial)
    return list(found.values())
