"""Filters of training pairs, and counts of what they remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sparsenmt.data.prepare.text_filters import TextFilters
from sparsenmt.errors import printable
from sparsenmt.recipe import schema

REASONS = ("empty", "max_length", "max_ratio")
"""Reasons to remove a pair by its tokens, in the order of the checks; a pair counts for the first one that applies.
Those of `TextFilters` come after them, and that it is repeated before them."""
EXAMPLES = 10
"""Pairs that are kept as examples of a reason."""
_SHOWN = 60  # characters of an example


@dataclass
class FilterCounts:
    """Numbers of pairs of a corpus before and after the filters."""

    read: int = 0
    kept: int = 0
    cut: int = 0
    """Kept pairs whose source was truncated to `max_source_length`."""
    removed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    examples: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    """Some of the pairs by the reason: line number from 1, source, target; only where filters read text."""

    def add(self, other: FilterCounts) -> None:
        """Add the numbers of other pairs."""
        self.read += other.read
        self.kept += other.kept
        self.cut += other.cut
        for reason, count in other.removed.items():
            self.removed[reason] = self.removed.get(reason, 0) + count
        for reason, pairs in other.examples.items():
            own = self.examples.setdefault(reason, [])
            own += pairs[: EXAMPLES - len(own)]

    def remove(self, reason: str, line: int, texts: Sequence[str]) -> None:
        """Count a pair that is left out, given by its line from 0 and its text, and keep it as an example."""
        self.removed[reason] = self.removed.get(reason, 0) + 1
        self.keep_example(reason, line, texts)

    def keep_example(self, reason: str, line: int, texts: Sequence[str]) -> None:
        """Keep a pair as an example of a reason, unless there are enough."""
        own = self.examples.setdefault(reason, [])
        if len(own) < EXAMPLES:
            source, target = (text[:_SHOWN] for text in texts)
            own.append((line + 1, source, target))

    def describe_examples(self) -> list[str]:
        """The examples, one in a line."""
        return [
            f"  {reason}, line {line:,}: '{printable(source)}' | '{printable(target)}'"
            for reason, pairs in sorted(self.examples.items())
            for line, source, target in pairs
        ]


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as token ids without BOS and EOS, and the line number of each in its corpus."""

    source: Sequence[list[int]]
    target: Sequence[list[int]]
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.lines)


def truncate_sources(pairs: EncodedPairs, limit: int | None, counts: FilterCounts) -> EncodedPairs:
    """Truncate sources to ``limit`` tokens, and keep all pairs, even empty ones; updates ``counts``."""
    counts.read += len(pairs)
    counts.kept += len(pairs)
    if limit is None:
        return pairs
    counts.cut += sum(len(ids) > limit for ids in pairs.source)
    return EncodedPairs([ids[:limit] for ids in pairs.source], pairs.target, pairs.lines)


def apply_filters(
    pairs: EncodedPairs,
    filters: schema.Filters,
    counts: FilterCounts,
    texts: tuple[Sequence[str], ...] = (),
    by_text: TextFilters | None = None,
) -> EncodedPairs:
    """Truncate sources and remove pairs as the recipe asks; updates ``counts``.

    Lengths are in tokens, without EOS. Truncation comes before `max_length` and `max_ratio`.

    Args:
        texts: sources and targets, for the filters ``by_text``.
    """
    source = np.array([len(ids) for ids in pairs.source], dtype=np.int64)
    target = np.array([len(ids) for ids in pairs.target], dtype=np.int64)
    limit = filters.max_source_length
    too_long = source > limit if limit is not None else np.zeros(len(pairs), dtype=np.bool_)
    if limit is not None:
        source = np.minimum(source, limit)
    shorter, longer = np.minimum(source, target), np.maximum(source, target)

    removed_by = {"empty": shorter == 0}
    if filters.max_length is not None:
        removed_by["max_length"] = longer > filters.max_length
    if filters.max_ratio is not None:
        removed_by["max_ratio"] = longer > filters.max_ratio * shorter
    keep = np.ones(len(pairs), dtype=np.bool_)
    for reason in REASONS:
        if reason in removed_by:
            removed = keep & removed_by[reason]
            counts.removed[reason] += int(removed.sum())
            for row in np.flatnonzero(removed)[:EXAMPLES].tolist() if by_text is not None else ():
                counts.keep_example(reason, pairs.lines[row], [side[row] for side in texts])
            keep &= ~removed_by[reason]
    for row in np.flatnonzero(keep).tolist() if by_text is not None else ():
        own = [side[row] for side in texts]
        if by_text is not None and (found := by_text.reason(*own)) is not None:
            counts.remove(found, pairs.lines[row], own)
            keep[row] = False

    counts.read += len(pairs)
    counts.kept += int(keep.sum())
    counts.cut += int((keep & too_long).sum())
    rows = np.flatnonzero(keep).tolist()
    return EncodedPairs(
        [pairs.source[row][:limit] for row in rows],
        [pairs.target[row] for row in rows],
        [pairs.lines[row] for row in rows],
    )
