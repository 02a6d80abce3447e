"""Filters against a naive twin, and that every pair counts once."""

from __future__ import annotations

import random

import pytest

from sparsenmt.data.prepare.filters import EncodedPairs, FilterCounts, apply_filters, truncate_sources
from sparsenmt.recipe.schema import Filters


def naive(source: list[int], target: list[int], filters: Filters) -> tuple[str | None, list[int], bool]:
    """Why a pair is removed, or None; its source; whether that was cut."""
    cut = filters.max_source_length is not None and len(source) > filters.max_source_length
    source = source[: filters.max_source_length]
    if not source or not target:
        return "empty", source, cut
    if filters.max_length is not None and (len(source) > filters.max_length or len(target) > filters.max_length):
        return "max_length", source, cut
    ratio = max(len(source) / len(target), len(target) / len(source))
    if filters.max_ratio is not None and ratio > filters.max_ratio:
        return "max_ratio", source, cut
    return None, source, cut


def test_filters_equal_their_naive_twin() -> None:
    generator = random.Random(1)
    for _ in range(60):
        filters = Filters(
            max_length=generator.choice([None, 3, 8]),
            max_ratio=generator.choice([None, 1.0, 2.0]),
            max_source_length=generator.choice([None, 2, 6]),
        )
        sides = [([7] * generator.randint(0, 10), [8] * generator.randint(0, 10)) for _ in range(50)]
        counts = FilterCounts()
        kept = apply_filters(
            EncodedPairs([s for s, _ in sides], [t for _, t in sides], range(100, 150)), filters, counts
        )

        judged = [naive(source, target, filters) for source, target in sides]
        expected = [row for row, (reason, _, _) in enumerate(judged) if reason is None]
        assert kept.lines == [row + 100 for row in expected]
        assert kept.source == [judged[row][1] for row in expected]
        assert kept.target == [sides[row][1] for row in expected]
        assert counts.cut == sum(judged[row][2] for row in expected)
        for reason, count in counts.removed.items():
            assert count == sum(reason == other for other, _, _ in judged)
        assert counts.read == 50 == counts.kept + sum(counts.removed.values())


def test_counts_add_up_over_blocks() -> None:
    counts = FilterCounts()
    for _ in range(3):
        apply_filters(EncodedPairs([[5], []], [[5], [5]], [0, 1]), Filters(), counts)
    assert (counts.read, counts.kept, counts.removed["empty"]) == (6, 3, 3)


@pytest.mark.parametrize("limit", [None, 1000, 999, 1])
def test_cutting_leaves_no_pair_out(limit: int | None) -> None:
    counts = FilterCounts()
    pairs = EncodedPairs([[], [5] * 1000, [6]], [[5], [], [5] * 2000], [0, 1, 2])
    left = [[], [5] * (limit or 1000), [6]]
    assert truncate_sources(pairs, limit, counts) == EncodedPairs(left, pairs.target, pairs.lines)
    assert (counts.read, counts.kept, counts.cut) == (3, 3, limit in (999, 1))


def test_no_pairs() -> None:
    assert (
        len(apply_filters(EncodedPairs([], [], []), Filters(max_ratio=2.0, max_source_length=3), FilterCounts())) == 0
    )
