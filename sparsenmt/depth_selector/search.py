"""The search over a classifier's hyper-parameters, cell by cell; what was stopped goes on after the last whole cell.

In the directory of the work stand ``search.json``, sealed: what the search depends on, and what came of the cells that
are done; and the weights of the best of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsenmt.depth_selector.labels import Labelled
from sparsenmt.depth_selector.training import Hyperparameters, Settings, Trial, train_cell
from sparsenmt.errors import UserError
from sparsenmt.files import changed_values, describe_change, make_directories, read_sealed, write_sealed
from sparsenmt.tensors import load_tensors, save_tensors

_RECORD = "search.json"
_AGAIN = "It is made again."


class Search:
    """A search, and what is done of it.

    Args:
        directory: where the work stands; nothing else may stand there.
        work: what every cell depends on, as JSON; of other work nothing is used.
        cells: what is tried.
    """

    def __init__(self, directory: Path, work: Mapping[str, Any], cells: Sequence[Hyperparameters]) -> None:
        self._directory = directory
        self._work = json.loads(json.dumps(work))
        self._cells = list(cells)
        self.trials: list[Trial] = []
        """Of the cells that are done."""
        self.again: str | None = None
        """Why what an earlier run left is of no use, if it left something."""
        make_directories(directory)
        self.again = self._recover()
        self._tidy()

    def _recover(self) -> str | None:
        """Take up the cells that are done; returns what is wrong with them."""
        path = self._directory / _RECORD
        if not path.exists():
            return None
        try:
            record = read_sealed(path, hint=_AGAIN)
            if changed := changed_values(record["work"], self._work):
                return describe_change(*changed[0])
            trials = [Trial(cell=Hyperparameters(**each.pop("cell")), **each) for each in record["trials"]]
            load_tensors(self._weights(best_of(trials)), hint=_AGAIN)
        except (UserError, KeyError, TypeError, ValueError):
            return "the record of what was done is damaged"
        if best_of(trials).cell not in self._cells:
            return "the best cell so far is not asked for"
        self.trials = [trial for trial in trials if trial.cell in self._cells]
        return None

    def run(
        self,
        settings: Settings,
        training: Labelled,
        validation: Labelled,
        table: Tensor,
        *,
        advance: Callable[[int], object] | None = None,
    ) -> tuple[Trial, dict[str, Tensor]]:
        """Train the cells that are not done; returns the one with the least loss, and its weights.

        Args:
            advance: told the number of epochs that are done, or not needed.

        Raises:
            UserError: no cell has a loss that is a number.
        """
        done = {trial.cell for trial in self.trials}
        for cell in self._cells:
            if cell in done:
                continue
            trial, weights = train_cell(cell, settings, training, validation, table, advance=advance)
            self.trials.append(trial)
            if best_of(self.trials) is trial:
                save_tensors(self._weights(trial), weights)
            trials = [asdict(each) for each in self.trials]
            write_sealed(self._directory / _RECORD, {"work": self._work, "trials": trials})
            self._tidy()
        best = best_of(self.trials)
        if not math.isfinite(best.loss):
            raise UserError(
                "the classifier's training has diverged in every cell",
                where="--learning-rate",
                hint="Take a lower one.",
            )
        return best, load_tensors(self._weights(best), hint=_AGAIN)

    def _weights(self, trial: Trial) -> Path:
        return self._directory / f"{trial.cell.key}.safetensors"

    def _tidy(self) -> None:
        """Remove all but the record and the weights of the best cell."""
        kept = {_RECORD, self._weights(best_of(self.trials)).name} if self.trials else set()
        for path in self._directory.iterdir():
            if path.is_file() and path.name not in kept:
                path.unlink()


def best_of(trials: Sequence[Trial]) -> Trial:
    """The one with the least loss; of equal ones the first."""
    return min(trials, key=lambda trial: trial.loss)
