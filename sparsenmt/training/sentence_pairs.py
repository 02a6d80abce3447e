"""The training task of translation: batches of sentence pairs, which nothing connects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from sparsenmt.data.batching import Batch, EpochPlan, IndexBatch, collate
from sparsenmt.data.corpus_mixture import CorpusMixture
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.frame import NO_FRAMES, FramePair
from sparsenmt.data.tokenizers.sampled_division import SampledDivision
from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import Training
from sparsenmt.training.failures import describe_lines, nonfinite_batches
from sparsenmt.training.gradients import BatchLosses, BatchResult, Objective, UpdateTotals, accumulate_gradients
from sparsenmt.training.guided_alignment import GuidedHead
from sparsenmt.training.uploads import Uploads

_TOLERATED = 1.25  # size of a batch of sampled tokens, as a multiple of the limit


class TranslationTask:
    """The sentence pairs of a run.

    Args:
        model: on its device.
        datasets: the training corpora.
        plan: the batches of every epoch.
        options: the recipe's ``training`` section.
        frames: the tokens around sources and targets, of the recipe's languages.
        division: divides sentences anew in every epoch, ahead of the updates; None: they keep their tokens.
        mixture: weights of the corpora in each stage of the run; None: those of the plan.
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
        division: SampledDivision | None = None,
        mixture: CorpusMixture | None = None,
        guided: GuidedHead | None = None,
    ) -> None:
        self.model, self.datasets, self.plan, self.device = model, datasets, plan, device
        self._workers, self.frames, self.division, self.guided = workers, frames, division, guided
        self.batch_tokens = options.batch_tokens
        self.uploads = Uploads(device)
        ahead = division is not None or device.type == "cuda"
        self._reader = ThreadPoolExecutor(1, "read-ahead") if ahead else None
        self._ahead: tuple[tuple[int, int, int], Future[PairBatches]] | None = None
        self._mixture, self._stage = mixture, 0
        self._epoch: tuple[int, Sequence[IndexBatch]] | None = None
        self._shares = workers.size
        wanted = options.accumulate_tokens or options.batch_tokens
        self.batches_per_update = math.ceil(wanted / options.batch_tokens)

    def _batches(self, epoch: int) -> Sequence[IndexBatch]:
        """The batches of all processes."""
        if self._epoch is None or self._epoch[0] != epoch:
            weights = None if self._mixture is None else self._mixture.weights[self._stage]
            self._epoch = epoch, self.plan.batches(epoch, weights=weights)
        return self._epoch[1]

    def enter_stage(self, update: int) -> bool:
        """Implement `TrainingTask.enter_stage`."""
        before, self._stage = self._stage, 0 if self._mixture is None else self._mixture.stage(update)
        if before == self._stage:
            return False
        self._epoch = self._ahead = None
        return True

    def count_batches(self, epoch: int) -> int:
        """Implement `TrainingTask.count_batches`."""
        return math.ceil(len(self._batches(epoch)) / self._shares)

    def read(self, epoch: int, first: int, last: int) -> PairBatches:
        """Implement `TrainingTask.read`.

        With a division or on a GPU, a thread reads the next update while this one is computed.
        """
        if self._reader is None:
            return PairBatches(self, self._chosen(epoch, first, last), epoch)
        ahead, self._ahead = self._ahead, None
        found = None if ahead is None or ahead[0] != (epoch, first, last) else ahead[1]
        read = PairBatches(self, self._chosen(epoch, first, last), epoch) if found is None else found.result()
        if last < (count := self.count_batches(epoch)):
            end = min(last + self.batches_per_update, count)
            chosen = self._chosen(epoch, last, end)
            self._ahead = (epoch, last, end), self._reader.submit(PairBatches, self, chosen, epoch)
        return read

    def next_batch(self) -> Batch | None:
        """Return the first batch of the next update, if it is read already."""
        future = None if self._ahead is None else self._ahead[1]
        if future is None or not future.done() or future.exception() is not None:
            return None
        return future.result().first()

    def _chosen(self, epoch: int, first: int, last: int) -> list[IndexBatch]:
        """The batches of an epoch from ``first`` to before ``last`` in this process."""
        batches, workers = self._batches(epoch), self._workers
        of_update = range(len(batches))[first * self._shares : last * self._shares]
        return [batches[number] for number in of_update[workers.rank :: workers.size]]

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

    def __init__(self, task: TranslationTask, chosen: Sequence[IndexBatch], epoch: int) -> None:
        self._task, self._epoch = task, epoch
        pairs = [pair for each in chosen for pair in self._read(each)]
        self._chosen, self._batches = [each for each, _ in pairs], [batch for _, batch in pairs]
        self.totals = UpdateTotals.of(self._batches)

    def _read(self, chosen: IndexBatch) -> Iterator[tuple[IndexBatch, Batch]]:
        """Read a batch; in two halves, if sampled tokens make it much larger than the recipe's limit."""
        task = self._task
        batch = collate(task.datasets, chosen, task.frames, task.division, self._epoch, links=task.guided is not None)
        size = len(chosen) * max(batch.source.shape[1], batch.target_output.shape[1])
        if task.division is None or len(chosen) == 1 or size <= _TOLERATED * task.batch_tokens:
            yield chosen, batch
        else:
            for half in chosen.halves():
                yield from self._read(half)

    def __len__(self) -> int:
        return len(self._chosen)

    def first(self) -> Batch | None:
        """Return the first batch; None: there is none."""
        return self._batches[0] if self._batches else None

    def add_gradients(self, number: int, objective: Objective, totals: UpdateTotals) -> BatchLosses:
        """Implement `UpdateBatches.add_gradients`."""
        task, batch = self._task, self._batches[number]
        try:
            there = task.uploads.take(batch)
            losses = accumulate_gradients(task.model, there, objective, totals, task.guided)
            following = self._batches[number + 1] if number + 1 < len(self) else task.next_batch()
            if following is not None:
                task.uploads.begin(following)  # the device is still computing
            return losses
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
