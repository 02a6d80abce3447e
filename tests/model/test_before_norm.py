"""The states before the encoder's final normalisation, as filters read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsenmt.model.compaction import apply_gates
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from tests.model.support import random_model, random_source
from tests.model.test_compaction import memory_of


class Reader(MemoryFilter):
    """Keeps what it reads, and closes every other position."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Memory] = []

    def forward(self, memory: Memory) -> Gates:
        self.read.append(memory)
        return Gates((memory.positions % 2 == 0).to(memory.states.dtype))


def read_by(filters: list[Reader], **keys: Any) -> tuple[list[Memory], list[Tensor], Memory]:
    """Memories that filters after the last layer read; input and output of the normalisation; the memory after them."""
    model, normalised = random_model(**keys), list[Tensor]()
    model.memory.output = nn.ModuleList(filters)
    model.encoder.norm.register_forward_hook(lambda module, given, made: normalised.extend((given[0], made)))
    memory = model.encode(random_source(), compact=True).memories[2]
    return [reader.read[0] for reader in filters], normalised, memory


def test_a_filter_reads_both_states_and_the_decoder_one() -> None:
    (read,), (before, after), memory = read_by([Reader()])
    assert torch.equal(read.before_norm, before) and torch.equal(read.states, after)
    assert not torch.allclose(before, after) and memory.unnormed is None and memory.before_norm is memory.states


def test_without_a_final_normalisation_both_are_the_same() -> None:
    (read,), (before, after), _ = read_by([Reader()], norm="post")
    assert torch.equal(read.before_norm, read.states) and torch.equal(before, after)


def test_the_second_filter_reads_what_the_first_one_has_left_of_both() -> None:
    (_, second), (before, after), _ = read_by([Reader(), Reader()])
    at = second.positions[0].tolist()
    assert at[0] == -1 and not bool(second.states[:, 0].any()) and not bool(second.before_norm[:, 0].any())
    for place, position in enumerate(at[1:], start=1):
        assert torch.equal(second.states[0, place], after[0, position])
        assert torch.equal(second.before_norm[0, place], before[0, position])


def test_between_layers_there_is_no_normalisation() -> None:
    model, reader = random_model(), Reader()
    model.memory.between.append(nn.ModuleList([reader]))
    model.encode(random_source())
    assert reader.read[0].unnormed is None and reader.read[0].before_norm is reader.read[0].states


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("closed", ["zero", "mask"])
def test_gates_scale_and_drop_both_alike(closed: Any, compact: bool) -> None:
    memory = memory_of()
    values = torch.tensor([[0, 1, 0.5, 0, 0, 1], [1, 0, 1, 9, 9, 9], [0, 0, 0.25, 0, 0, 9]], dtype=torch.float64)
    found = apply_gates(replace(memory, unnormed=2 * memory.states), Gates(values, closed), compact=compact)
    assert found.unnormed is not None
    torch.testing.assert_close(found.unnormed, 2 * found.states, atol=0, rtol=0)
