"""The task of a run as the training loop sees it: batches, the gradients of an update, and state between updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from sparsenmt.training.gradients import BatchLosses, BatchResult, Objective, UpdateTotals


class UpdateBatches(Protocol):
    """The batches of one update in this process, read into memory; there may be none."""

    @property
    def totals(self) -> UpdateTotals:
        """The sums over these batches."""
        ...

    def __len__(self) -> int: ...

    def add_gradients(self, number: int, objective: Objective, totals: UpdateTotals) -> BatchLosses:
        """Run the model on a batch, numbered from 0 in order, and add its gradients.

        Args:
            totals: of the update, over all processes.

        Raises:
            UserError: there is not enough memory.
        """
        ...

    def describe(self, results: Sequence[BatchResult]) -> str:
        """Name the lines of the batches whose loss is not finite; of all batches if only the gradient is not."""
        ...

    def complete(self, *, skipped: bool) -> None:
        """Move the state of the task to the boundary after this update; until then it is that of the one before."""
        ...


class TrainingTask(Protocol):
    """The batches of every epoch, of this process, and what is carried from one update to the next."""

    @property
    def batches_per_update(self) -> int:
        """Batches of an update; fewer at the end of an epoch."""
        ...

    def enter_stage(self, update: int) -> bool:
        """Choose the mixture of texts after this update; return True if it is another one, and a new epoch begins."""
        ...

    def count_batches(self, epoch: int) -> int:
        """Return the number of an epoch's batches in each of the processes that the run began with."""
        ...

    def read(self, epoch: int, first: int, last: int) -> UpdateBatches:
        """Read the batches of an epoch from ``first`` to before ``last``: those of the next update."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return the state at the last boundary of an update, for checkpoints; names and shapes are those of every
        process."""
        ...

    def restore(self, states: Sequence[Mapping[str, Tensor]], shares: int) -> None:
        """Restore the state of a checkpoint, and keep the updates of its run.

        Args:
            states: of the processes that wrote it, by rank; there may be more or fewer now.
            shares: the number of processes that the run began with: an update has their batches.

        Raises:
            UserError: an update has fewer batches than there are processes now.
        """
        ...
