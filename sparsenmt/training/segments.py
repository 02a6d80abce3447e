"""The training task of language models: one segment of every stream an update, and the memory of the segments before.

The memory of the streams (Dai et al. 2019, section 3.2) is replaced when an update is complete. So an update that is
discarded is repeated from the same memory. It is empty at the beginning of an epoch, and after an update that was
skipped: then the next segment does not follow the one in memory.
Shapes: B rows, T tokens of a segment, D model dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sparsenmt.data.streams import Segment, StreamPlan
from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.process.devices import upload
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import Training
from sparsenmt.training.failures import describe_ranges, nonfinite_batches
from sparsenmt.training.gradients import BatchLosses, BatchResult, Objective, TargetRows, UpdateTotals

Rows = tuple[int, int]
"""The first stream of a batch, and the one after its last."""


class LanguageModelTask:
    """The streams of a run, and their memory. A batch is some of the streams that this process reads.

    Args:
        model: on its device.
        plan: the segments of every epoch.
        options: the recipe's ``training`` section.
    """

    batches_per_update = 1  # of the plan: an update reads one segment of every stream

    def __init__(
        self, model: TranslationModel, plan: StreamPlan, options: Training, workers: Workers, device: torch.device
    ) -> None:
        self.model, self.plan, self.device = model, plan, device
        self._workers = workers
        self._rows = max(options.batch_tokens // options.segment_length, 1)
        self._epoch: tuple[int, Sequence[Segment]] | None = None
        self._segments(0)  # refuses streams that cannot be divided among the processes
        self.memory: tuple[SegmentMemory, ...] = ()
        """After the last update, of each batch; empty: the streams begin."""

    def _segments(self, epoch: int) -> Sequence[Segment]:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self.plan.batches(epoch, self._workers.rank, self._workers.size)
        return self._epoch[1]

    def batch_rows(self, streams: int) -> list[Rows]:
        """Divide streams into batches."""
        return [(first, min(first + self._rows, streams)) for first in range(0, streams, self._rows)]

    def enter_stage(self, update: int) -> bool:
        """Return False: there are no stages."""
        return False

    def count_batches(self, epoch: int) -> int:
        """Implement `TrainingTask.count_batches`."""
        return len(self._segments(epoch))

    def read(self, epoch: int, first: int, last: int) -> SegmentBatches:
        """Implement `TrainingTask.read`; an update reads one segment of every stream."""
        segments = self._segments(epoch)
        if first == 0:
            self.memory = ()
        return SegmentBatches(self, segments[first], ends=last >= len(segments))

    def state(self) -> dict[str, Tensor]:
        """The memory of all streams; nothing at the beginning of an epoch."""
        return SegmentMemory.concatenate(self.memory).tensors() if self.memory else {}

    def restore(self, states: Sequence[Mapping[str, Tensor]], shares: int) -> None:
        """Implement `TrainingTask.restore`; the streams are divided among the processes that there are now."""
        self.memory = ()
        if states:
            workers = self._workers
            every = SegmentMemory.interleave([SegmentMemory.of(state, self.device) for state in states])
            whole = every.select(slice(workers.rank, None, workers.size))
            parts = [whole.select(slice(*rows)) for rows in self.batch_rows(len(whole.states[0]))]
            self.memory = tuple(SegmentMemory.concatenate([part]) for part in parts)  # copies, not views of the whole


class SegmentBatches:
    """One segment of every stream, in batches.

    Args:
        ends: the segment is the last one of the epoch.
    """

    def __init__(self, task: LanguageModelTask, segment: Segment, *, ends: bool) -> None:
        self._task, self._segment, self._ends = task, segment, ends
        self._rows = task.batch_rows(segment.rows)
        self._after: list[SegmentMemory] = []
        self.totals = UpdateTotals(segment.tokens, 0, segment.rows)

    def __len__(self) -> int:
        return len(self._rows)

    def add_gradients(self, number: int, objective: Objective, totals: UpdateTotals) -> BatchLosses:
        """Implement `UpdateBatches.add_gradients`."""
        task = self._task
        inputs, targets = (upload(each, task.device) for each in self._segment.read(*self._rows[number]))
        before = task.memory[number] if task.memory else None
        try:
            result, after = accumulate_segment_gradients(task.model, inputs, targets, before, objective, totals)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"out of memory in a batch of {inputs.shape[0]:,} segments of {inputs.shape[1]:,} tokens",
                where="training.batch_tokens",
                hint="Lower it: an update still reads one segment of every stream. Or lower training.segment_length, "
                "training.streams or model.segment_memory.",
            ) from None
        self._after.append(after)
        return result

    def describe(self, results: Sequence[BatchResult]) -> str:
        """Implement `UpdateBatches.describe`."""
        chosen = nonfinite_batches(self._rows, results)
        return describe_ranges(part for rows in chosen for part in self._segment.ranges(*rows))

    def complete(self, *, skipped: bool) -> None:
        """Implement `UpdateBatches.complete`."""
        self._task.memory = () if skipped or self._ends else tuple(self._after)


def accumulate_segment_gradients(
    model: TranslationModel,
    inputs: Tensor,
    targets: Tensor,
    before: SegmentMemory | None,
    objective: Objective,
    totals: UpdateTotals,
) -> tuple[BatchLosses, SegmentMemory]:
    """Add the gradients of one segment of some streams, (B, T) on the model's device.

    Returns:
        the shares of the update's losses, and the memory after the segment.
    """
    pairs = model.plan.pairs() if objective.pairs is None else objective.pairs
    shares: dict[int, float] = {}
    for (_, exit_), share in pairs.items():
        shares[exit_] = shares.get(exit_, 0.0) + share
    valid = torch.ones_like(targets, dtype=torch.bool)
    weights = objective.token_weights(valid, totals).to(torch.promote_types(model.output_table.dtype, torch.float32))
    rows = TargetRows(targets, valid, weights, valid.numel())
    hidden, after = model.read_segment(inputs, before, exits=tuple(shares))
    loss, nll = rows.backward(model, hidden, shares, objective.smoothing).double()
    return BatchLosses(loss, nll, {}), after
