"""Greedy search: the most probable token, step by step."""

from __future__ import annotations

from torch import Tensor

from sparsenmt.decoding.single_hypothesis import Pick, SingleHypothesisSearch
from sparsenmt.decoding.strategies import EncodedBatch


def pick_best(logits: Tensor, rows: Tensor, step: int) -> Tensor:
    """The most probable tokens; implements `single_hypothesis.Pick`."""
    return logits.argmax(-1)


class GreedySearch(SingleHypothesisSearch):
    """Greedy search."""

    name = "greedy"
    greedy = True

    def picker(self, batch: EncodedBatch) -> Pick:
        return pick_best
