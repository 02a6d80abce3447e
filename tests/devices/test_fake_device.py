"""Every registered method on a fake CUDA device: tensors are made there, and the processor seldom waits for it.

The five parts are encode, decode, loss, backward with optimizer, and search (beam, greedy, sampling). `ALLOWED` is the
one place that says which function may read from the device, copy to it, or make a tensor on the CPU, how often, and why.
`tests/devices/fake_device.py` says what this way does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor

from sparsenmt.assemble import build_model
from sparsenmt.data.batching import Batch
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.errors import UserError
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding, Optimizer
from sparsenmt.training.gradients import (
    Objective,
    UpdateTotals,
    accumulate_gradients,
    add_parameter_losses,
    clip_gradients,
)
from sparsenmt.training.loss import negative_log_likelihood
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.segments import accumulate_segment_gradients
from sparsenmt.training.state import make_optimizer
from tests.conformance.cases import VOCABULARY, Case, Plug, accepted, build_with, plugs, recipe_section
from tests.conformance.support import language_model_section
from tests.devices.fake_device import CUDA, FakeDevice, Kind, WrongDeviceError
from tests.toys import registered

Part = Literal["encode", "decode", "loss", "update", "search"]
PARTS: tuple[Part, ...] = get_args(Part)
SEARCHES = ("beam", "greedy", "sample")
LENGTH = 6  # tokens of an output at most

ALLOWED: Mapping[tuple[Kind, str], tuple[int, str]] = {}
"""(kind, function) -> (the most events in a part of `run`, the reason)."""


def first_places() -> list[Plug]:
    """Every method with every example, at one place each: the places of a socket take turns."""
    found: dict[tuple[str, str], list[Plug]] = {}
    for plug in accepted(plugs()):
        found.setdefault((plug.method.name, str(plug.options)), []).append(plug)
    return [each[number % len(each)] for number, each in enumerate(found.values())]


CASES = [Case((), "pre"), *(Case((plug,), "pre") for plug in first_places())]
TEXT_CASES = [case for case in CASES if all(plug.place.startswith("decoder_self.") for plug in case.plugs)]


@dataclass
class Run:
    """A model on the fake device, and a batch."""

    fake: FakeDevice
    model: Transformer
    source: Source
    target: Tensor  # (B, T)

    def memories(self, *, compact: bool) -> dict[int, Memory]:
        encoded = self.model.encode(self.source, exits=self.model.plan.encoder_exits, compact=compact)
        return dict(encoded.memories)

    @property
    def batch(self) -> Batch:
        valid = torch.ones_like(self.target, dtype=torch.bool)
        valid[0, -2:] = False
        counts = {"source_tokens": 20, "target_tokens": 2 * LENGTH}
        inputs = self.source.tokens, self.source.valid, self.source.features
        return Batch(*inputs, self.target, self.target, valid, None, tuple(range(len(self.target))), **counts)


def prepare(case: Case, fake: FakeDevice) -> Callable[[], Run]:
    """Build a case on the CPU; call the result while the fake device is running."""
    bench = build_with(case, case.seed)
    with registered():
        model = build_model(recipe_section(case), source_size=VOCABULARY, target_size=VOCABULARY, seed=case.seed)
    rows = len(bench.source.tokens)

    def move() -> Run:
        with fake.unrecorded():
            source, target = bench.source, bench.target[:rows].clone().to(CUDA)
            features = {name: each.clone().to(CUDA) for name, each in source.features.items()}
            there = Source(source.tokens.clone().to(CUDA), source.valid.clone().to(CUDA), features)
            return Run(fake, model.to(CUDA), there, target)

    return move


def encode(run: Run) -> None:
    with torch.inference_mode():
        run.model.eval()
        run.memories(compact=True)


def decode(run: Run) -> None:
    with torch.inference_mode():
        run.model.eval()
        with run.fake.unrecorded():
            memories = run.memories(compact=False)
        for memory in memories.values():
            run.model.decode(run.target, memory, exits=run.model.plan.decoder_exits)


def loss(run: Run) -> None:
    with torch.no_grad():
        run.model.eval()
        with run.fake.unrecorded():
            memory = run.memories(compact=False)[run.model.plan.encoder_exits[-1]]
            (states, *_) = run.model.decode(run.target, memory).values()
        negative_log_likelihood(run.model, states.flatten(0, 1), run.target.flatten())


def update(run: Run) -> None:
    model = run.model.train()
    with run.fake.unrecorded():
        encoded = model.encode(run.source, exits=model.plan.encoder_exits)
        names = {name for decided in encoded.decided.values() for name in decided.losses}
        batch, of_parameters = run.batch, dict.fromkeys(model.parameter_losses(), 0.5)
        weights = MasterWeights(model, torch.float32)
        optimizer = make_optimizer(weights, Optimizer())
        own = [parameter for parameter in weights.named.values() if parameter.requires_grad]
    totals = UpdateTotals.of([batch])
    accumulate_gradients(model, batch, Objective(0.1, "tokens", dict.fromkeys(names, 0.5)), totals)
    add_parameter_losses(model, of_parameters)
    weights.collect()
    clip_gradients(own, 1.0, "total")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    weights.publish()


def search(run: Run) -> None:
    model = run.model.eval()
    with torch.inference_mode(), run.fake.unrecorded():
        last = model.plan.encoder_exits[-1]
        memory = model.encode(run.source, exits=(last,), compact=True).memories[last]
        limits = torch.full((len(run.target),), LENGTH, device=CUDA)
    numbers = list(range(len(run.target)))
    for name in SEARCHES:
        strategy = strategy_of(Decoding(method=name, beam_size=2))
        found = strategy.search(model, [EncodedBatch(memory, limits, numbers, numbers)], lambda _: nullcontext())
        assert sorted(number for results in found for number in results) == numbers


RUNS: Mapping[Part, Callable[[Run], None]] = {
    "encode": encode,
    "decode": decode,
    "loss": loss,
    "update": update,
    "search": search,
}


def undeclared(fake: FakeDevice, part: str) -> list[str]:
    """What happened in a part more often than `ALLOWED` says."""
    return [
        f"{part}: {where}: {kind} x {count}, allowed: {ALLOWED.get((kind, where), (0, ''))[0]}"
        for (kind, where), count in fake.counts().items()
        if count > ALLOWED.get((kind, where), (0, ""))[0]
    ]


def run_parts(case: Case, parts: Sequence[Part] = PARTS) -> list[str]:
    fake, found = FakeDevice(), []
    move = prepare(case, fake)
    with fake.running():
        run = move()
        for part in parts:
            fake.events.clear()
            RUNS[part](run)
            found += undeclared(fake, part)
    return found


@pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
def test_every_method(case: Case) -> None:
    try:
        assert not run_parts(case)
    except UserError as error:
        pytest.skip(f"refused: {error}")
