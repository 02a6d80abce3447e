"""Which training pairs are left out, and how many for which reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sparsenmt.recipe import schema

REASONS = ("empty", "max_length", "max_ratio")
"""Why a pair may be left out, in the order of the checks; a pair counts for the first that applies."""


@dataclass
class FilterCounts:
    """What the filters did to a corpus, in pairs."""

    read: int = 0
    kept: int = 0
    cut: int = 0
    """Kept pairs whose source was cut to `max_source_length`."""
    removed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))


@dataclass(frozen=True)
class EncodedPairs:
    """A block of pairs: ids of both sides, without BOS and EOS, and the line of the corpus each came from."""

    source: Sequence[list[int]]
    target: Sequence[list[int]]
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.lines)


def cut_sources(pairs: EncodedPairs, limit: int | None, counts: FilterCounts) -> EncodedPairs:
    """All pairs, empty ones too, with no source longer than ``limit`` pieces; ``counts`` is added to."""
    counts.read += len(pairs)
    counts.kept += len(pairs)
    if limit is None:
        return pairs
    counts.cut += sum(len(ids) > limit for ids in pairs.source)
    return EncodedPairs([ids[:limit] for ids in pairs.source], pairs.target, pairs.lines)


def apply_filters(pairs: EncodedPairs, filters: schema.Filters, counts: FilterCounts) -> EncodedPairs:
    """The pairs that remain, their sources cut where the recipe asks; ``counts`` is added to.

    Lengths are in pieces, without EOS. Cutting comes before `max_length` and `max_ratio`, which so see what the model
    will see.
    """
    source = np.array([len(ids) for ids in pairs.source], dtype=np.int64)
    target = np.array([len(ids) for ids in pairs.target], dtype=np.int64)
    limit = filters.max_source_length
    too_long = source > limit if limit is not None else np.zeros(len(pairs), dtype=np.bool_)
    if limit is not None:
        source = np.minimum(source, limit)
    shorter, longer = np.minimum(source, target), np.maximum(source, target)

    left_out = {"empty": shorter == 0}
    if filters.max_length is not None:
        left_out["max_length"] = longer > filters.max_length
    if filters.max_ratio is not None:
        left_out["max_ratio"] = longer > filters.max_ratio * shorter
    keep = np.ones(len(pairs), dtype=np.bool_)
    for reason in REASONS:
        if reason in left_out:
            counts.removed[reason] += int((keep & left_out[reason]).sum())
            keep &= ~left_out[reason]

    counts.read += len(pairs)
    counts.kept += int(keep.sum())
    counts.cut += int((keep & too_long).sum())
    rows = np.flatnonzero(keep).tolist()
    return EncodedPairs(
        [pairs.source[row][:limit] for row in rows],
        [pairs.target[row] for row in rows],
        [pairs.lines[row] for row in rows],
    )
