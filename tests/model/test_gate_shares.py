"""The share of source positions that filters close: by the gates of evaluation, in training as in decoding."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import nn

from sparsenmt.decoding.inputs import make_source
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import GatesSeen
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.model.transformer import Transformer
from tests.analysis.support import gated_bundle, sources
from tests.model.support import random_model, random_source

LENGTHS = (7, 4, 6)


class Sampled(MemoryFilter):
    """In evaluation the gates of `rows` (sentences, positions), in training samples that are independent of them."""

    position_dependent = True

    def __init__(self, rows: torch.Tensor, closed: Literal["zero", "mask"], cumulative: bool) -> None:
        super().__init__()
        self.rows, self.closed, self.cumulative = rows, closed, cumulative

    def forward(self, memory: Memory) -> Gates:
        of_source = self.rows.to(memory.states.dtype)
        evaluated = of_source.gather(1, memory.positions.clamp_min(0))
        values = (torch.rand_like(evaluated) < 0.5).to(evaluated.dtype) if self.training else evaluated
        found = memory.source_mean(evaluated)
        return Gates(values, self.closed, {"toy": found}, evaluated, self.cumulative)


Kind = tuple[Literal["zero", "mask"], bool]
ZERO, MASK, STAYS, MASK_STAYS = kinds = ("zero", False), ("mask", False), ("zero", True), ("mask", True)
PLACES: dict[str, tuple[list[list[Kind]], list[Kind]]] = {  # kinds of filters after layers 1 and 2, and at the output
    **{f"{a}, {b}": ([[a], [b]], []) for a, b in itertools.product(kinds, repeat=2)},
    "masks, then gates": ([[MASK], [ZERO]], [ZERO]),
    "all kinds": ([[STAYS], [MASK]], [STAYS, MASK, ZERO]),
    "several at a place": ([[ZERO, STAYS], [MASK, ZERO]], [ZERO, MASK, MASK_STAYS]),
}


def gates_of(number: int) -> torch.Tensor:
    """Gates of 0, 0.5 and 1 for every source position."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 3, (len(LENGTHS), max(LENGTHS)), generator=generator) / 2


def model_with(places: tuple[list[list[Kind]], list[Kind]]) -> Transformer:
    model, numbers = random_model(encoder_layers=3), itertools.count()
    for kinds in places[0]:
        model.memory.between.append(nn.ModuleList(Sampled(gates_of(next(numbers)), *kind) for kind in kinds))
    model.memory.output.extend(Sampled(gates_of(next(numbers)), *kind) for kind in places[1])
    return model.eval()


def gates_in_loops(places: tuple[list[list[Kind]], list[Kind]]) -> list[list[list[float]]]:
    """The gate of every filter and source position in evaluation, position by position."""
    numbers, found = itertools.count(), []
    masked = [[False] * length for length in LENGTHS]
    last = [[1.0] * length for length in LENGTHS]
    for kinds in (*places[0], places[1]):
        for first, (closed, cumulative) in zip((True, *[False] * len(kinds)), kinds, strict=False):
            rows = gates_of(next(numbers)).tolist()
            for b, i in ((b, i) for b, length in enumerate(LENGTHS) for i in range(length)):
                gate = 0.0 if masked[b][i] or (cumulative and last[b][i] == 0) else rows[b][i]
                masked[b][i] |= closed == "mask" and gate == 0
                last[b][i] = gate if first else gate * last[b][i]
            found.append([list(row) for row in last])
    return found


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_the_shares_of_training_are_those_of_evaluation(places: tuple[list[list[Kind]], list[Kind]]) -> None:
    """Against loops; told in training and in evaluation, to the loss, to listeners, and by the decoder's memory."""
    model, expected = model_with(places), gates_in_loops(places)
    for training, compact in ((True, False), (False, False), (False, True)):
        seen: list[GatesSeen] = []
        with model.train(training).listen_to_gates(seen.append):
            encoded = model.encode(random_source(LENGTHS), compact=compact)
        for each, rows in zip(seen, expected, strict=True):
            assert [each.evaluated[b, : LENGTHS[b]].tolist() for b in range(3)] == rows
        shares = encoded.decided[3].shares["toy"]
        for b, length in enumerate(LENGTHS):
            closed = sum(row[b].count(0.0) for row in expected) / length / len(expected)
            partial = sum(0 < gate < 1 for row in expected for gate in row[b]) / length / len(expected)
            assert (float(shares.closed[b]), float(shares.partial[b])) == (
                pytest.approx(closed),
                pytest.approx(partial),
            )
        gates = encoded.memories[3].gates
        assert training or (gates is not None and torch.equal(gates, seen[-1].evaluated))


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_dropping_is_exact_with_several_filters(places: tuple[list[list[Kind]], list[Kind]]) -> None:
    model, target = model_with(places), torch.tensor([[5, 9, 6]] * 3)
    with torch.inference_mode():
        dense, compact = (
            model.decode(target, model.encode(random_source(LENGTHS), compact=c).memories[3])[2] for c in (False, True)
        )
    torch.testing.assert_close(compact, dense, atol=1e-10, rtol=0)


def test_every_exit_has_the_shares_of_its_own_way() -> None:
    """Filters at the output of one exit change nothing for the next."""
    model = model_with(PLACES["all kinds"]).train()
    together = model.encode(random_source(LENGTHS), exits=(1, 2, 3)).decided
    for depth in (1, 2, 3):
        alone = model.encode(random_source(LENGTHS), exits=(depth,)).decided[depth].shares["toy"]
        assert torch.equal(together[depth].shares["toy"].closed, alone.closed)
        assert torch.equal(together[depth].shares["toy"].partial, alone.partial)


def force(model: nn.Module, log_alpha: float) -> None:
    """Give every gate the same log alpha, whatever the state."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("memory."):
                parameter.fill_(log_alpha if parameter.ndim == 0 else 0.0)


@pytest.mark.parametrize(("closed", "cumulative"), [("zero", True), ("mask", False)])
def test_gates_that_evaluation_leaves_open_are_told_open(closed: str, cumulative: bool) -> None:
    """At log alpha -1.5 half of the samples are 0, and after six filters almost all; in evaluation no gate is."""
    memory = [{"name": "l0drop", "at": "between", "closed": closed, "cumulative": cumulative}]
    model = random_model(encoder_layers=7, memory=memory)
    force(model, -1.5)
    torch.manual_seed(0)
    shares = model.train().encode(random_source((60, 40))).decided[7].shares["l0"]
    assert shares.closed.tolist() == [0, 0] and shares.partial.tolist() == [1, 1]


def test_masked_positions_stay_in_the_closed_share() -> None:
    """The second filter closes nothing more: its share is that of the first."""
    memory = [{"name": "toy_faint", "at": "between", "closed": "mask"}]
    bundle = gated_bundle(memory, layers=3)
    last = bundle.model.memory.between[1][0]  # type: ignore[index]
    with torch.no_grad():
        last.bias.fill_(9.0)
        last.direction.zero_()
    source = make_source(bundle, sources(bundle))
    encoded = bundle.model.encode(source)
    gates, lengths = encoded.memories[3].gates, source.valid.sum(1)
    assert gates is not None
    told = float((encoded.decided[3].shares["toy_strength"].closed * lengths).sum() / lengths.sum())
    rate = float((source.valid & (gates == 0)).sum() / lengths.sum())
    assert told == pytest.approx(rate) and 0.2 < rate < 0.8


@pytest.mark.parametrize("memory", [["toy_tags", "toy_faint"], ["toy_faint", "toy_tags"], ["group", "l0drop"]])
def test_what_one_filter_of_a_place_closes_stays_closed(memory: list[str]) -> None:
    """A zero vector is dropped, and counted as such, whatever gate the next filter gives it."""
    choices: list[dict[str, Any]] = [{"name": name, "at": "output"} for name in memory]
    model, source, seen = random_model(memory=choices), random_source((20, 13)), list[GatesSeen]()
    words = torch.arange(20).expand(2, -1) // 2
    source = replace(source, features={**source.features, "word_id": words})
    with model.listen_to_gates(seen.append):
        (dense,) = model.encode(source).memories.values()
    (compact,) = model.encode(source, compact=True).memories.values()
    zero = ~dense.states.any(-1) & source.valid
    assert dense.gates is not None and torch.equal(zero, (dense.gates == 0) & source.valid)
    assert torch.equal(seen[-1].closed, zero) and bool((seen[-1].closed >= seen[0].closed).all())
    assert compact.gates is not None and torch.equal(compact.gates, dense.gates)
    assert compact.states.shape[1] == int((source.valid & ~zero).sum(1).max()) + 1
