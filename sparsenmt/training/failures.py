"""What to tell when an update fails: which lines of which corpus, which shape, which key to lower."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sparsenmt.data.batching import Batch, IndexBatch
from sparsenmt.data.store import Dataset
from sparsenmt.errors import UserError
from sparsenmt.training.gradients import BatchResult

_RANGES = 20  # of lines, named at most for each corpus


def provenance(datasets: Sequence[Dataset], batches: Sequence[IndexBatch]) -> str:
    """The lines of the corpora, from 1, that batches were made of: ``multi30k, lines 3, 17-19 (4 in all)``."""
    parts = []
    for number, dataset in enumerate(datasets):
        chosen = [batch.index[batch.dataset == number] for batch in batches]
        lines = np.unique(dataset.line_numbers[np.concatenate(chosen)]) + 1 if chosen else np.zeros(0, dtype=np.int64)
        if len(lines):
            parts.append(f"{dataset.name}, lines {_ranges(lines.tolist())} ({len(lines):,} in all)")
    return "; ".join(parts)


def _ranges(lines: Sequence[int]) -> str:
    """Sorted numbers as ``3, 17-19``."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    shown = ", ".join(f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in runs[:_RANGES])
    return f"{shown}, ..." if len(runs) > _RANGES else shown


def suspects(batches: Sequence[IndexBatch], results: Sequence[BatchResult]) -> Sequence[IndexBatch]:
    """The batches whose own loss is not finite; all, if only the gradient is not."""
    bad = [batch for batch, result in zip(batches, results, strict=True) if not math.isfinite(result.loss)]
    return bad or batches


def not_finite(update: int, loss: float, norm: float, lines: str, tolerated: int) -> UserError:
    """The loss or the gradient of an update is not a number, or is infinite."""
    allowed = f", after {tolerated} that were left out" if tolerated else ""
    return UserError(
        f"the loss is {loss} and the gradient's norm {norm} at update {update}{allowed}",
        where=lines or None,
        hint="Look at these lines; lower training.learning_rate or lengthen training.warmup_updates; or let "
        "training.skip_nonfinite leave such updates out. Training goes on from the last checkpoint, if there is one.",
    )


def out_of_memory(batch: Batch) -> UserError:
    """A batch does not fit into memory."""
    source, target = batch.source.shape[1], batch.target_input.shape[1]
    return UserError(
        f"out of memory in a batch of {batch.sentences:,} sentences, {source:,} source and {target:,} target pieces",
        where="training.batch_tokens",
        hint="Lower it (training.accumulate_tokens keeps the size of an update); a single long pair is left out by "
        "data.filters.max_length.",
    )
