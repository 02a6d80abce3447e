"""The training task of translation: batches of sentence pairs, which nothing connects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sparsenmt.data.batching import EpochBatches, EpochPlan, IndexBatch, collate
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.frame import NO_FRAMES, FramePair
from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import Training
from sparsenmt.training.failures import describe_lines, nonfinite_batches
from sparsenmt.training.gradients import BatchResult, Objective, UpdateTotals, accumulate_gradients
from sparsenmt.training.guided_alignment import GuidedHead


class TranslationTask:
    """The sentence pairs of a run.

    Args:
        model: on its device.
        datasets: the training corpora.
        plan: the batches of every epoch.
        options: the recipe's ``training`` section.
        frames: the tokens around sources and targets, of the recipe's languages.
        guided: the head that alignments guide; None: none.
    """

    def __init__(
        self,
        model: TranslationModel,
        datasets: Sequence[Dataset],
        plan: EpochPlan,
        options: Training,
        workers: Workers,
        device: torch.device,
        frames: FramePair = NO_FRAMES,
        guided: GuidedHead | None = None,
    ) -> None:
        self.model, self.datasets, self.plan, self.device = model, datasets, plan, device
        self._workers, self.frames, self.guided = workers, frames, guided
        self._epoch: tuple[int, EpochBatches] | None = None
        self._shares = workers.size
        wanted = options.accumulate_tokens or options.batch_tokens
        self.batches_per_update = math.ceil(wanted / options.batch_tokens)

    def _batches(self, epoch: int) -> EpochBatches:
        """The batches of all processes."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self.plan.batches(epoch)
        return self._epoch[1]

    def count_batches(self, epoch: int) -> int:
        """Implement `TrainingTask.count_batches`."""
        return math.ceil(len(self._batches(epoch)) / self._shares)

    def read(self, epoch: int, first: int, last: int) -> PairBatches:
        """Implement `TrainingTask.read`."""
        batches, workers = self._batches(epoch), self._workers
        of_update = range(len(batches))[first * self._shares : last * self._shares]
        return PairBatches(self, [batches[number] for number in of_update[workers.rank :: workers.size]])

    def state(self) -> dict[str, Tensor]:
        """Nothing is carried from one update to the next."""
        return {}

    def restore(self, states: Sequence[Mapping[str, Tensor]], shares: int) -> None:
        """Implement `TrainingTask.restore`; there is no state, but the batches of an update."""
        most = shares * self.batches_per_update
        if self._workers.size > most:
            raise UserError(
                f"an update of this run has {most} batches, fewer than there are processes",
                where=f"{self._workers.size} processes",
                hint=f"Resume it with at most {most} processes.",
            )
        self._shares = shares


class PairBatches:
    """The sentence pairs of one update."""

    def __init__(self, task: TranslationTask, chosen: Sequence[IndexBatch]) -> None:
        self._task, self._chosen = task, chosen
        self._batches = [collate(task.datasets, each, task.frames, links=task.guided is not None) for each in chosen]
        self.totals = UpdateTotals.of(self._batches)

    def __len__(self) -> int:
        return len(self._chosen)

    def add_gradients(self, number: int, objective: Objective, totals: UpdateTotals) -> BatchResult:
        """Implement `UpdateBatches.add_gradients`."""
        batch = self._batches[number].to(self._task.device)
        try:
            return accumulate_gradients(self._task.model, batch, objective, totals, self._task.guided)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            source, target = batch.source.shape[1], batch.target_input.shape[1]
            shape = f"{batch.sentences:,} sentences, {source:,} source and {target:,} target tokens"
            raise UserError(
                f"out of memory in a batch of {shape}",
                where="training.batch_tokens",
                hint="Lower it (training.accumulate_tokens keeps the size of an update), or exclude long pairs with "
                "data.filters.max_length.",
            ) from None

    def describe(self, results: Sequence[BatchResult]) -> str:
        """Implement `UpdateBatches.describe`."""
        return describe_lines(self._task.datasets, nonfinite_batches(self._chosen, results))

    def complete(self, *, skipped: bool) -> None:
        """Nothing is carried to the next update."""
