"""Dropping: `apply_gates` against loops, and whole models with everything, nothing, or some of it dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from sparsenmt.model.compaction import apply_gates
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.model.transformer import Transformer
from tests.model.support import random_model, random_source, random_target

Closed = Literal["zero", "mask"]
Entry = tuple[tuple[float, ...], int, float]  # state, position, count


def memory_of(lengths: tuple[int, ...] = (6, 3, 5), dimension: int = 3) -> Memory:
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    states = torch.randn(*valid.shape, dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Memory(states, valid, torch.arange(max(lengths)).expand(len(lengths), -1))


def entries(memory: Memory, sentence: int) -> list[Entry]:
    """What a sentence's readers see."""
    counts = torch.ones_like(memory.positions).double() if memory.counts is None else memory.counts
    return [
        (tuple(memory.states[sentence, i].tolist()), int(memory.positions[sentence, i]), float(counts[sentence, i]))
        for i in range(memory.states.shape[1])
        if memory.valid[sentence, i]
    ]


def dropped_in_loops(before: list[Entry], gates: list[float], closed: Closed) -> list[Entry]:
    """One stand-in that counts the closed entries, then the others, scaled."""
    kept = [
        (tuple(gate * x for x in state), at, count)
        for (state, at, count), gate in zip(before, gates, strict=True)
        if gate
    ]
    count = sum(entry[2] for entry, gate in zip(before, gates, strict=True) if not gate)
    zero = tuple(0.0 for _ in before[0][0])
    return [*([(zero, -1, count)] if count and closed == "zero" else []), *kept]


GATES = {
    "some": [[0, 1, 0.5, 0, 0, 1], [1, 0, 1, 9, 9, 9], [0, 0, 0.25, 0, 0, 9]],
    "all of one sentence": [[1, 0, 1, 1, 1, 1], [0, 0, 0, 9, 9, 9], [1, 1, 1, 1, 1, 9]],
    "none of one sentence": [[0, 0, 0, 0, 1, 1], [1, 1, 1, 9, 9, 9], [0, 1, 1, 1, 1, 9]],
    "everything": [[0] * 6, [0, 0, 0, 9, 9, 9], [0, 0, 0, 0, 0, 9]],
    "nothing": [[1, 0.5, 1, 1, 1, 1], [1, 1, 1, 9, 9, 9], [1, 1, 1, 0.1, 1, 9]],
}  # 9: padding, whatever a filter says there


@pytest.mark.parametrize("closed", ["zero", "mask"])
@pytest.mark.parametrize("values", GATES.values(), ids=GATES)
def test_compaction_against_loops(values: list[list[float]], closed: Closed) -> None:
    memory, gates = memory_of(), torch.tensor(values, dtype=torch.float64)
    found = apply_gates(memory, Gates(gates, closed), compact=True)
    for b in range(3):
        before = entries(memory, b)
        assert entries(found, b) == dropped_in_loops(before, values[b][: len(before)], closed)
    kept = ((gates != 0) & memory.valid).sum(1).max()
    some_dropped = bool(((gates == 0) & memory.valid).any())
    width = int(kept) + 1 if closed == "zero" else max(int(kept), 1)
    assert found.states.shape[1] == (width if some_dropped else 6)
    assert found.gates is not None and torch.equal(found.gates, gates * memory.valid)


@pytest.mark.parametrize("closed", ["zero", "mask"])
@pytest.mark.parametrize("values", GATES.values(), ids=GATES)
def test_without_compaction_everything_stays_in_place(values: list[list[float]], closed: Closed) -> None:
    memory, gates = memory_of(), torch.tensor(values, dtype=torch.float64)
    found = apply_gates(memory, Gates(gates, closed), compact=False)
    real = gates * memory.valid
    assert torch.equal(found.states, memory.states * real.unsqueeze(-1)) and torch.equal(
        found.positions, memory.positions
    )
    assert torch.equal(found.valid, memory.valid if closed == "zero" else memory.valid & (gates != 0))
    assert found.counts is None and found.gates is not None and torch.equal(found.gates, real)


def _after_a_layer(memory: Memory) -> Memory:
    """A layer between: the stand-in is no zero vector any more."""
    return replace(memory, states=memory.states + 1, gated=False)


def test_a_stand_in_that_a_filter_opens_again_is_open_to_the_next_one() -> None:
    found = []
    for compact in (False, True):
        dropped = apply_gates(memory_of((4,)), Gates(torch.tensor([[1.0, 0, 0, 1]])), compact=compact)
        assert dropped.open_entries().tolist() == ([[False, True, True]] if compact else [[True, False, False, True]])
        layer = replace(dropped, states=dropped.states + 1, gated=False)
        opened = apply_gates(layer, Gates(torch.ones(layer.valid.shape)), compact=compact)
        assert bool(opened.open_entries().all())
        found.append(apply_gates(opened, Gates(torch.full(opened.valid.shape, 0.5)), compact=compact).gates)
    assert found[0] is not None and found[0].tolist() == [[0.5] * 4] and torch.equal(*found)


def test_stand_ins_merge_or_stay_side_by_side() -> None:
    memory = memory_of()
    first = apply_gates(memory, Gates(torch.tensor(GATES["some"], dtype=torch.float64)), compact=True)
    assert first.counts is not None and first.counts[:, 0].tolist() == [3, 1, 4]
    # Entries now: stand-in and positions (1, 2, 5), (0, 2), (2).
    first = _after_a_layer(first)
    second = torch.tensor([[0, 0, 1, 1], [0.5, 0, 1, 9], [1, 1, 9, 9]], dtype=torch.float64)
    found = apply_gates(first, Gates(second), compact=True)
    for b in range(3):
        before = entries(first, b)
        assert entries(found, b) == dropped_in_loops(before, second[b, : len(before)].tolist(), "zero")
    assert [[(at, count) for _, at, count in entries(found, b)] for b in range(3)] == [
        [(-1, 4), (2, 1), (5, 1)],  # the old stand-in and position 1 in one new stand-in
        [(-1, 1), (-1, 1), (2, 1)],  # the old stand-in, opened again, beside a new one
        [(-1, 4), (2, 1)],
    ]
    # Gates over the source: every position has that of the entry which stood for it.
    expected = [[0, 0, 1, 0, 0, 1], [0, 0.5, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]
    assert found.gates is not None and found.gates.tolist() == expected
    third = apply_gates(_after_a_layer(found), Gates(torch.ones(3, 3, dtype=torch.float64) * 0.5), compact=True)
    assert third.gates is not None and torch.equal(third.gates, 0.5 * memory.valid)


@pytest.mark.parametrize("closed", ["zero", "mask"])
def test_what_an_earlier_filter_masked_goes_too(closed: Closed) -> None:
    """Nothing is dropped here, but no sentence has as many entries as there are places."""
    memory = replace(memory_of(), valid=torch.tensor([[0, 1, 1, 0, 0, 1], [1, 1, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]]) > 0)
    gates = Gates(torch.full((3, 6), 0.5, dtype=torch.float64), closed)
    compacted = apply_gates(memory, gates, compact=True)
    assert compacted.states.shape[1] == 3 and bool((compacted.positions >= 0).all())
    plain = apply_gates(memory, gates, compact=False)
    assert [entries(compacted, i) for i in range(3)] == [entries(plain, i) for i in range(3)]


def test_counts_are_exact_in_low_precision() -> None:
    memory = memory_of((700, 3), 2)
    memory = replace(memory, states=memory.states.bfloat16())
    gates = torch.zeros(2, 700)
    gates[:, 0] = 1
    found = apply_gates(memory, Gates(gates), compact=True)
    assert found.counts is not None and found.counts[:, 0].tolist() == [699, 2]
    assert found.states.dtype == torch.bfloat16


class Fixed(MemoryFilter):
    """Gates by position, whatever the states; stand-ins are closed again."""

    def __init__(self, rows: list[list[float]], closed: Closed) -> None:
        super().__init__()
        self.rows, self.closed = torch.tensor(rows), closed

    def forward(self, memory: Memory) -> Gates:
        values = self.rows.to(memory.states.dtype).gather(1, memory.positions.clamp_min(0))
        return Gates(values * (memory.positions >= 0), self.closed)


def with_filter(rows: list[list[float]], closed: Closed, place: str, **keys: Any) -> Transformer:
    model = random_model(encoder_layers=3, **keys)
    if place == "output":
        model.memory.output.append(Fixed(rows, closed))
    else:
        model.memory.between.extend(nn.ModuleList([Fixed(rows, closed)]) for _ in range(2))
    return model


def translate(model: Transformer, *, compact: bool) -> Tensor:
    memory = model.encode(random_source((6, 3, 5)), compact=compact).memories[3]
    return model.project(model.decode(random_target(6, 4), memory)[2])


@pytest.mark.parametrize("place", ["output", "between"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("closed", ["zero", "mask"])
@pytest.mark.parametrize("values", GATES.values(), ids=GATES)
def test_models_with_these_gates(values: list[list[float]], closed: Closed, norm: str, place: str) -> None:
    model = with_filter(values, closed, place, norm=norm)
    dense, compacted = translate(model, compact=False), translate(model, compact=True)
    assert bool(dense.isfinite().all())
    torch.testing.assert_close(compacted, dense, atol=1e-10, rtol=0)
    dense.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("closed", ["zero", "mask"])
def test_open_gates_change_nothing(closed: Closed) -> None:
    expected = translate(random_model(encoder_layers=3), compact=False)
    for compact in (False, True):
        found = translate(with_filter([[1.0] * 6] * 3, closed, "output"), compact=compact)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_a_masked_sentence_is_one_without_those_positions() -> None:
    """Masking after the encoder: the same as a memory that never had them."""
    model = with_filter(GATES["some"], "mask", "output")
    memory = model.encode(random_source((6, 3, 5))).memories[3]
    short = memory.valid[0].nonzero().squeeze(1)
    alone = Memory(memory.states[:1, short], memory.valid[:1, short], memory.positions[:1, short])
    target = random_target(6, 4)
    expected = model.decode(target, memory)[2][:2]
    torch.testing.assert_close(model.decode(target[:2], alone)[2], expected, atol=1e-12, rtol=0)
