"""Every registered method on a fake CUDA device: tensors are made there, and the processor seldom waits for it.

The five parts are encode, decode, loss, backward with optimizer, and search (beam, greedy, sampling). `ALLOWED` says in
one place which function may read from the device, copy to it, or make a tensor on the CPU, how often, and why.
`tests/devices/fake_device.py` says what this way does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from sparsenmt.assemble.model import build_model
from sparsenmt.data.batching import Batch
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.native import gradients, kernels
from sparsenmt.process.devices import pick_device
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
from tests.conformance.support import each, language_model_section
from tests.devices.fake_device import CUDA, FakeDevice, Kind, WrongDeviceError
from tests.toys import registered

Part = Literal["encode", "decode", "loss", "update", "search"]
PARTS: tuple[Part, ...] = get_args(Part)
SEARCHES = ("beam", "greedy", "sample")
LENGTH = 6  # tokens of an output at most

STEPS = LENGTH * len(SEARCHES)  # of the three searches together
LAYERS = 2
_NEWTON = "Newton's method ends when all rows are close: at most so often in a layer"
ALLOWED: Mapping[tuple[Kind, str], tuple[int, str]] = {
    # Once a batch or an update.
    ("read", "training/gradients.py: __init__"): (1, "places of the target tokens"),
    ("read", "training/gradients.py: token_weights"): (1, "weights of the target tokens"),
    ("read", "training/gradients.py: accumulate_gradients"): (1, "loss of a batch, for the log and the check"),
    ("read", "training/gradients.py: <dictcomp>"): (2, "losses of parameters"),
    ("read", "training/gradients.py: _backward_encoder"): (4, "a filter's loss, once for each exit"),
    ("read", "training/gradients.py: _mean_shares"): (8, "a filter's shares, two for each exit"),
    ("read", "training/gradients.py: clip_gradients"): (1, "the norm: an update that is not finite is skipped"),
    ("upload", "training/gradients.py: backward"): (8, "shares of the exits"),
    ("upload", "model/embeddings.py: forward"): (2, "the table of positions, once"),
    ("upload", "sparsity/pos.py: dropped"): (3, "the categories, once a filter"),
    # Once a batch: compaction makes a memory smaller.
    ("read", "model/compaction.py: apply_gates"): (6, "whether anything was dropped, once a filter"),
    # Once a layer of a batch.
    ("read", "model/attend.py: memory_mask"): (len(SEARCHES), "whether a sentence has no memory, once a memory"),
    ("read", "sparsity/adaptive_span.py: reach"): (2 * LAYERS, "learned spans decide the shapes of bands"),
    ("read", "sparsity/simplex/newton.py: _solve"): (STEPS * LAYERS * 8, _NEWTON),
    ("read", "sparsity/simplex/newton.py: _between"): (STEPS * LAYERS, "rows with an alpha of 1"),
    ("read", "sparsity/routing_transformer.py: _gather"): (16, "F.one_hot looks at its numbers on a CPU only"),
    ("address", "sparsity/transformer_xl.py: _vectors"): (STEPS * LAYERS, "identity of a weight: it is not read"),
    ("read", "sparsity/simplex/newton.py: _bend"): (LAYERS, "the smallest alpha decides the formula"),
    # A search: few reads a step, as finished sentences are removed.
    ("read", "decoding/beam.py: run"): (LENGTH, "whether a sentence is finished, once a step"),
    ("read", "decoding/beam.py: advance"): (2 * LENGTH, "whether a hypothesis ended, or is full, once a step each"),
    ("read", "decoding/beam.py: keep"): (2 * LENGTH, "whether sentences are removed, once a step, and which"),
    ("read", "decoding/beam.py: results"): (4, "places of finished sentences, once for each sentence"),
    ("read", "decoding/beam.py: <listcomp>"): (6 * 4, "results of finished sentences"),
    ("read", "decoding/beam.py: sentence_numbers"): (1, "numbers of the sentences, once a search"),
    ("read", "engine/torch_engine.py: _picked"): (2 * LENGTH, "whether scores are finite, once a step"),
    ("read", "decoding/single_hypothesis.py: extend_hypotheses"): (2 * (2 * LENGTH + 6 * 4), "as in beam search"),
    ("read", "decoding/sampling.py: picker"): (1, "length of the random numbers, once a search"),
    ("upload", "decoding/sampling.py: make_sampler"): (1, "random numbers, once a search"),
    ("host tensor", "decoding/sampling.py: make_sampler"): (8, "random numbers, which no device may change"),
    ("upload", "decoding/beam.py: __init__"): (1, "numbers of the sentences, once a search"),
    ("upload", "decoding/strategies.py: first_tokens"): (len(SEARCHES), "the first tokens, once a search"),
    # The toys of the tests.
    ("read", "toys/tag_filter.py: forward"): (6, "a toy"),
    ("upload", "toys/tag_filter.py: _is_any"): (6, "a toy"),
}
"""(kind, function) -> (the most events in one part, the reason)."""


MET: set[tuple[Kind, str]] = set()
"""What was read, copied or made in the parts that ran in this process."""


def first_places() -> list[Plug]:
    """Every method with every example, at one place each: the places of a socket take turns."""
    found: dict[tuple[str, str], list[Plug]] = {}
    for plug in accepted(plugs()):
        found.setdefault((plug.method.name, str(plug.options)), []).append(plug)
    return [each[number % len(each)] for number, each in enumerate(found.values())]


CASES = [Case((), "pre"), *(Case((plug,), "pre") for plug in first_places())]
TEXT_CASES = [
    case
    for case in CASES
    if all(plug.place.startswith("decoder_self.") and plug.method.socket != "heads" for plug in case.plugs)
]


@dataclass
class Run:
    """A model on the fake device, and a batch."""

    fake: FakeDevice
    model: Transformer
    source: Source
    target: Tensor  # (B, T)
    engine: Engine | None = None

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
        negative_log_likelihood(run.model.project, states.flatten(0, 1), run.target.flatten())


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
        engine = run.engine or TorchEngine(model)
        found = strategy.search(engine, [EncodedBatch(memory, limits, numbers, numbers)], lambda _: nullcontext())
        assert sorted(number for results in found for number in results) == numbers


RUNS: Mapping[Part, Callable[[Run], None]] = {
    "encode": encode,
    "decode": decode,
    "loss": loss,
    "update": update,
    "search": search,
}


def undeclared(fake: FakeDevice, part: str) -> list[str]:
    """Return the reads of a part beyond those of `ALLOWED`; those that there are stand in `MET`."""
    MET.update(fake.counts())
    return [
        f"{part}: {where}: {kind} x {count}, allowed: {ALLOWED.get((kind, where), (0, ''))[0]}"
        for (kind, where), count in fake.counts().items()
        if count > ALLOWED.get((kind, where), (0, ""))[0]
    ]


def run_parts(case: Case, parts: Sequence[Part] = PARTS) -> list[str]:
    """Run parts with the model as it is, and the last one with packed weights, too, as `sparsenmt decode` does."""
    fake, found = FakeDevice(), []
    move = prepare(case, fake)
    with fake.running():
        run = move()
        for part in parts:
            fake.events.clear()
            RUNS[part](run)
            found += undeclared(fake, part)
        with fake.unrecorded():
            run.engine = build(run.model, final=True)
        fake.events.clear()
        RUNS[parts[-1]](run)
        found += undeclared(fake, f"packed {parts[-1]}")
    return found


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled kernels are for tensors of the CPU: on a device they are not even loaded."""

    def asked() -> None:
        raise AssertionError("a kernel is asked for")

    for module in (kernels, gradients):
        monkeypatch.setattr(module, "_found", asked)


@each(CASES, fast=lambda case: case.has_first_examples)
def test_every_method(case: Case) -> None:
    try:
        assert not run_parts(case)
    except UserError as error:
        pytest.skip(f"refused: {error}")


@pytest.mark.slow
def test_what_is_allowed_happens() -> None:
    """A read that no part of any method needs any more is not allowed for ever."""
    for case in CASES:
        with suppress(UserError):
            run_parts(case)
    for case in TEXT_CASES:
        test_language_models_with_segment_memory(case)
    assert sorted(ALLOWED.keys() - MET) == []


PLANTS: Mapping[Part, tuple[type, str]] = {
    "encode": (Transformer, "encode"),
    "decode": (Transformer, "decode"),
    "loss": (Transformer, "project"),
    "update": (AdamW, "step"),
    "search": (TorchEngine, "_logits"),
}
"""Part -> the method that is damaged in it."""


def a_copy_to_the_cpu(run: Run) -> None:
    run.target.cpu()


def a_tensor_of_the_cpu(run: Run) -> None:
    run.target + torch.ones(run.target.shape[1], dtype=torch.long)


@pytest.mark.parametrize("damage", [a_copy_to_the_cpu, a_tensor_of_the_cpu])
@pytest.mark.parametrize("part", PARTS)
def test_plants_are_found(part: Part, damage: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice()
    move = prepare(Case((), "pre"), fake)
    with fake.running():
        run = move()
        owner, name = PLANTS[part]
        plain = getattr(owner, name)

        def damaged(*args: Any, **kwargs: Any) -> Any:
            if not fake.quiet:
                damage(run)
            return plain(*args, **kwargs)

        fake.events.clear()
        monkeypatch.setattr(owner, name, damaged)
        if damage is a_tensor_of_the_cpu:
            with pytest.raises(WrongDeviceError, match="a_tensor_of_the_cpu"):
                RUNS[part](run)
        else:
            RUNS[part](run)
            assert any("a_copy_to_the_cpu" in line for line in undeclared(fake, part))


def test_cudnn_is_not_asked_for_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make a plan for the shapes of every step."""
    asked: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", asked.append)
    run_parts(CASES[0], ("encode", "decode"))
    assert asked and not any(asked)
    asked.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    pick_device("auto")
    assert asked == [False]


@pytest.mark.parametrize("case", TEXT_CASES, ids=map(str, TEXT_CASES))
def test_language_models_with_segment_memory(case: Case) -> None:
    with registered():
        section = language_model_section(case)
        model = build_model(section, source_size=VOCABULARY, target_size=VOCABULARY, seed=case.seed)
    fake, text = FakeDevice(), torch.arange(2 * 12).view(2, 12) % VOCABULARY
    with fake.running():
        with fake.unrecorded():
            model.to(CUDA).train()
            parts = text.clone().to(CUDA).split(6, 1)
        memory, totals = None, UpdateTotals(24, 0, 2)
        for part in parts:
            objective = Objective(0.0, "tokens", {})
            fake.events.clear()
            _, memory = accumulate_segment_gradients(model, part, part, memory, objective, totals)
            allowed = {"training/segments.py: accumulate_segment_gradients"}  # the loss of a segment
            assert not [line for line in undeclared(fake, "segment") if not any(each in line for each in allowed)]
