"""Greedy search: the most probable token, step by step."""

from __future__ import annotations

from sparsenmt.decoding.single_hypothesis import Pick, SingleHypothesisSearch, most_probable
from sparsenmt.decoding.strategies import EncodedBatch


class GreedySearch(SingleHypothesisSearch):
    """Greedy search."""

    name = "greedy"
    greedy = True

    def picker(self, batch: EncodedBatch) -> Pick:
        return most_probable
