"""Listeners of gates are told of every filter's decision, and nothing changes by it."""

from __future__ import annotations

import pytest
import torch

from sparsenmt.model.protocol import GatesSeen
from tests.model.support import random_model, random_source

BOTH = [{"name": "toy_faint", "at": "between"}, {"name": "toy_faint", "at": "output"}]


@pytest.mark.parametrize("compact", [False, True])
def test_every_filter_is_told_in_the_order_of_execution(compact: bool) -> None:
    model = random_model(encoder_layers=3, memory=[*BOTH, {"name": "toy_tags", "at": "output"}])
    source, seen = random_source(), list[GatesSeen]()
    with model.listen_to_gates(seen.append):
        model.encode(source, compact=compact)
    places = [(each.depth, each.place, each.index) for each in seen]
    assert places == [(1, "between", 0), (2, "between", 0), (3, "output", 0), (3, "output", 1)]
    assert seen[0].memory.states.shape[:2] == source.tokens.shape
    for each in seen:
        assert each.gates.values.shape == each.memory.states.shape[:2]


def test_a_listener_changes_nothing_and_goes_when_its_block_ends() -> None:
    model, source, seen = random_model(memory=BOTH), random_source(), list[GatesSeen]()
    (before,) = model.encode(source).memories.values()
    with model.listen_to_gates(seen.append):
        (during,) = model.encode(source).memories.values()
    told = len(seen)
    model.encode(source)
    assert told == len(seen) == 2
    assert torch.equal(before.states, during.states)


def test_no_filter_no_word() -> None:
    seen = list[GatesSeen]()
    model = random_model()
    with model.listen_to_gates(seen.append):
        model.encode(random_source())
    assert seen == []
