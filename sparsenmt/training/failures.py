"""Errors of an update: the lines of the corpora that are involved, and the recipe key to change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from sparsenmt.data.batching import IndexBatch
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.text_dataset import TextDataset
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError
from sparsenmt.training.gradients import BatchResult

_Batch = TypeVar("_Batch")
_RANGES = 20  # ranges of lines that are named for each corpus


def describe_lines(datasets: Sequence[Dataset], batches: Sequence[IndexBatch]) -> str:
    """The lines of the corpora, from 1, in these batches: ``multi30k, lines 3, 17-19 (4 in all)``."""
    parts = []
    for number, dataset in enumerate(datasets):
        chosen = [batch.index[batch.dataset == number] for batch in batches]
        lines = np.unique(dataset.line_numbers[np.concatenate(chosen)]) + 1 if chosen else np.zeros(0, dtype=np.int64)
        if len(lines):
            parts.append(f"{dataset.name}, lines {_ranges(lines.tolist())} ({len(lines):,} in all)")
    return "; ".join(parts)


def describe_ranges(ranges: Iterable[tuple[TextDataset, int, int]]) -> str:
    """The lines of texts, from 1, in these ranges of tokens: ``books, lines 3-9, 40 (8 in all)``."""
    found: dict[str, set[int]] = {}
    for text, first, last in ranges:
        line = int(np.count_nonzero(text.ids[:first] == EOS)) + 1
        count = int(np.count_nonzero(text.ids[first : last - 1] == EOS)) + 1
        found.setdefault(text.name, set()).update(range(line, line + count))
    return "; ".join(
        f"{name}, lines {_ranges(sorted(lines))} ({len(lines):,} in all)" for name, lines in sorted(found.items())
    )


def _ranges(lines: Sequence[int]) -> str:
    """Sorted numbers as text: ``3, 17-19``."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    shown = ", ".join(f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in runs[:_RANGES])
    return f"{shown}, ..." if len(runs) > _RANGES else shown


def nonfinite_batches(batches: Sequence[_Batch], results: Sequence[BatchResult]) -> Sequence[_Batch]:
    """The batches whose loss is not finite; all of them if only the gradient is not."""
    bad = [batch for batch, result in zip(batches, results, strict=True) if not math.isfinite(result.loss)]
    return bad or batches


def nonfinite_error(update: int, loss: float, norm: float, lines: str, tolerated: int) -> UserError:
    """The error of an update whose loss or gradient is not finite."""
    allowed = f", after {tolerated} skipped updates" if tolerated else ""
    return UserError(
        f"the loss is {loss} and the gradient's norm {norm} at update {update}{allowed}",
        where=lines or None,
        hint="Check these lines; lower training.learning_rate or raise training.warmup_updates; or skip such updates "
        "with training.skip_nonfinite. Training resumes from the last checkpoint, if there is one.",
    )


def open_gates_warning(name: str, updates: int, options: Sequence[str]) -> str:
    """The warning about the gates of a loss with a target, which have been fully open for many updates.

    Args:
        options: of filters, which give the values of untrained gates.
    """
    start = f" ({', '.join(options)} of model.memory)" if options else ""
    return (
        f"warning: all gates of the loss {name!r} were fully open for {updates} updates, where they have no gradient; "
        f"begin with other values{start}, and with a larger losses.{name}.proportional and losses.{name}.max_weight"
    )
