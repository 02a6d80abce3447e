"""A case on a fake CUDA device: tensors are made there, and the processor seldom waits for it.

The five parts are encode, decode, loss, backward with optimizer, and search by every strategy of the package. `ALLOWED`
says in one place which function may read from the device, copy to it, or make a tensor on the CPU, how often, and why.
`fake_device` says what this way does not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NoReturn
from unittest import mock

import torch
from torch import Tensor

from sparsenmt.data.batching import Batch
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.sockets import Recurrence
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding, Optimizer
from sparsenmt.testing.bench import VOCABULARY, Bench, build_with, model_of
from sparsenmt.testing.cases import Case, fits_language_model, language_model_section, recipe_section
from sparsenmt.testing.checks import require
from sparsenmt.testing.fake_device import CUDA, FakeDevice, Kind, WrongDeviceError
from sparsenmt.training.gradients import (
    Objective,
    UpdateTotals,
    accumulate_gradients,
    add_parameter_losses,
    clip_gradients,
    read_losses,
)
from sparsenmt.training.loss import negative_log_likelihood
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.segments import accumulate_segment_gradients
from sparsenmt.training.state import make_optimizer

SEARCHES = ("beam", "greedy", "sample", "speculative", "early_exit")
LENGTH = 6  # tokens of an output at most

STEPS = LENGTH * len(SEARCHES)  # of all searches together
LAYERS = 2
_NEWTON = "Newton's method ends when all rows are close: at most so often in a layer"
ALLOWED: Mapping[tuple[Kind, str], tuple[int, str]] = {
    # Once a batch or an update.
    ("read", "training/gradients.py: read_losses"): (1, "losses, shares and norm: one that is not finite is skipped"),
    ("upload", "model/embeddings.py: table"): (2, "the table of positions, once"),
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
    ("read", "decoding/beam.py: advance"): (LENGTH, "whether hypotheses or a sentence ended, once a step"),
    ("read", "decoding/beam.py: remove"): (4, "which sentences stay, once for each that is finished"),
    ("read", "decoding/beam.py: results"): (
        7 * 4,
        "places and six results of finished sentences, once for each sentence",
    ),
    ("read", "decoding/beam.py: sentence_numbers"): (1, "numbers of the sentences, once a search"),
    ("read", "decoding/single_hypothesis.py: extend_hypotheses"): (3 * (2 * LENGTH + 6 * 4), "as in beam search"),
    ("read", "decoding/sampling.py: picker"): (1, "length of the random numbers, once a search"),
    ("upload", "decoding/sampling.py: make_sampler"): (1, "random numbers, once a search"),
    ("host tensor", "decoding/sampling.py: make_sampler"): (8, "random numbers, which no device may change"),
    ("read", "decoding/speculative.py: __init__"): (1, "limits of the sentences, once a search"),
    ("read", "decoding/speculative.py: run"): (2 * LENGTH, "tokens and scores of all layers, once a round each"),
    ("upload", "decoding/speculative.py: _outputs"): (LENGTH, "outputs of different lengths, once a round"),
    ("upload", "decoding/speculative.py: _remove_finished"): (LENGTH, "sentences that go on, once a round"),
    ("upload", "model/kv_cache.py: truncate_rows"): (LENGTH, "how many drafts were refused, once a round"),
    ("read", "model/kv_cache.py: truncate_rows"): (2 * LENGTH, "the columns that are left, once a round"),
    ("read", "model/stacks.py: _until"): (2 * LENGTH, "the rows that need more layers, once an exit of a step"),
    ("upload", "decoding/beam.py: __init__"): (1, "numbers of the sentences, once a search"),
    ("upload", "decoding/strategies.py: first_tokens"): (len(SEARCHES), "the first tokens, once a search"),
}
"""(kind, function) -> (the most events in one part, the reason)."""
OUTSIDE = 2
"""The most events of a method from outside the package, for each call of it."""


@dataclass
class DeviceRun:
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
        return Batch(
            source=self.source.tokens,
            source_valid=self.source.valid,
            features=dict(self.source.features),
            target_input=self.target,
            target_output=self.target,
            target_valid=valid,
            corpus=None,
            indices=tuple(range(len(self.target))),
            source_tokens=20,
            target_tokens=self.target.numel() - 2,
        )


def prepare(case: Case, fake: FakeDevice) -> Callable[[], DeviceRun]:
    """Build a case on the CPU; call the result while the fake device is running."""
    bench = build_with(case, case.seed)
    model = model_of(case, recipe_section, case.seed)
    rows = len(bench.source.tokens)

    def move() -> DeviceRun:
        with fake.unrecorded():
            source, target = bench.source, bench.target[:rows].clone().to(CUDA)
            features = {name: each.clone().to(CUDA) for name, each in source.features.items()}
            there = Source(source.tokens.clone().to(CUDA), source.valid.clone().to(CUDA), features)
            return DeviceRun(fake, model.to(CUDA), there, target)

    return move


def encode(run: DeviceRun) -> None:
    with torch.inference_mode():
        run.model.eval()
        run.memories(compact=True)


def decode(run: DeviceRun) -> None:
    with torch.inference_mode():
        run.model.eval()
        with run.fake.unrecorded():
            memories = run.memories(compact=False)
        for memory in memories.values():
            run.model.decode(run.target, memory, exits=run.model.plan.decoder_exits)


def loss(run: DeviceRun) -> None:
    with torch.no_grad():
        run.model.eval()
        with run.fake.unrecorded():
            memory = run.memories(compact=False)[run.model.plan.encoder_exits[-1]]
            (states, *_) = run.model.decode(run.target, memory).values()
        negative_log_likelihood(run.model.project, states.flatten(0, 1), run.target.flatten())


def update(run: DeviceRun) -> None:
    model = run.model.train()
    with run.fake.unrecorded():
        encoded = model.encode(run.source, exits=model.plan.encoder_exits)
        names = {name for decided in encoded.decided.values() for name in decided.losses}
        batch, of_parameters = run.batch, dict.fromkeys(model.parameter_losses(), 0.5)
        weights = MasterWeights(model, torch.float32)
        optimizer = make_optimizer(weights, Optimizer())
        own = [parameter for parameter in weights.named.values() if parameter.requires_grad]
    totals = UpdateTotals.of([batch])
    objective = Objective(0.1, "tokens", dict.fromkeys(names, 0.5))
    losses = [accumulate_gradients(model, batch, objective, totals), add_parameter_losses(model, of_parameters)]
    weights.collect()
    read_losses(losses, *clip_gradients(own, 1.0, "total"))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    weights.publish()


def search(run: DeviceRun) -> None:
    model = run.model.eval()
    with torch.inference_mode(), run.fake.unrecorded():
        last = model.plan.encoder_exits[-1]
        memory = model.encode(run.source, exits=(last,), compact=True).memories[last]
        limits = torch.full((len(run.target),), LENGTH, device=CUDA)
    numbers, exits = list(range(len(run.target))), model.plan.decoder_exits
    batch = EncodedBatch(memory, limits, numbers, numbers, decoder_exits=exits)
    for name in SEARCHES:
        if name == "speculative" and any(isinstance(module, Recurrence) for module in model.modules()):
            continue  # it is refused: drafts cannot be taken back
        strategy = strategy_of(Decoding(method=name, beam_size=2, draft_tokens=2))
        engine = run.engine or TorchEngine(model)
        found = strategy.search(engine, [batch], lambda _: nullcontext())
        require(sorted(number for results in found for number in results) == numbers, f"{name} search loses sentences")


PARTS: Mapping[str, Callable[[DeviceRun], None]] = {
    each.__name__: each for each in (encode, decode, loss, update, search)
}

Allowed = Mapping[tuple[Kind, str], tuple[int, str]]
Counts = Counter[tuple[Kind, str]]


def undeclared(counts: Counts, part: str, allowed: Allowed = ALLOWED) -> list[str]:
    """Return the events of a part beyond those that are allowed."""
    return [
        f"{part}: {where}: {kind} x {count}, allowed: {allowed.get((kind, where), (0, ''))[0]}"
        for (kind, where), count in counts.items()
        if count > allowed.get((kind, where), (0, ""))[0]
    ]


@contextmanager
def without_kernels() -> Iterator[None]:
    """Compiled kernels are for tensors of the CPU: on a device they are not even loaded."""

    def asked() -> NoReturn:
        raise WrongDeviceError("a compiled kernel is asked for")

    with ExitStack() as patches:
        for module in ("native.kernels", "native.gradients", "engine.entmax_kernel"):
            patches.enter_context(mock.patch(f"sparsenmt.{module}._found", asked))
        yield


def run_parts(case: Case, parts: Sequence[str] = tuple(PARTS)) -> list[tuple[str, Counts]]:
    """Run parts with the model as it is, and the last one with packed weights, too, as `sparsenmt decode` does.

    Returns:
        the name and the events of each part.
    """
    fake, found = FakeDevice(), []
    move = prepare(case, fake)
    with without_kernels(), fake.running():
        run = move()
        for part in parts:
            fake.events.clear()
            PARTS[part](run)
            found.append((part, fake.counts()))
        with fake.unrecorded():
            run.engine = build(run.model, final=True)
        fake.events.clear()
        PARTS[parts[-1]](run)
        return [*found, (f"packed {parts[-1]}", fake.counts())]


def run_segments(case: Case) -> list[tuple[str, Counts]]:
    """Train a language model on two segments of a text; returns as `run_parts`."""
    model = model_of(case, language_model_section, case.seed)
    fake, text = FakeDevice(), torch.arange(2 * 12).view(2, 12) % VOCABULARY
    with without_kernels(), fake.running():
        with fake.unrecorded():
            model.to(CUDA).train()
            parts = text.clone().to(CUDA).split(6, 1)
        memory: SegmentMemory | None = None
        found = []
        totals = UpdateTotals(24, 0, 2)
        for part in parts:
            objective = Objective(0.0, "tokens", {})
            fake.events.clear()
            _, memory = accumulate_segment_gradients(model, part, part, memory, objective, totals)
            found.append(("segment", fake.counts()))
    return found


def check_device(bench: Bench) -> None:
    """On a device every tensor is made there, and a method seldom waits for it, or copies to it."""
    case = bench.case
    outside = {plug.method.outside for plug in case.plugs} - {None}
    outside.add("model/first_batch.py")  # what a method from outside gives is checked once
    found = [*run_parts(case), *(run_segments(case) if fits_language_model(case) else [])]
    for part, counts in found:
        # Calls of a part: each layer of both sides, twice in an update; each step of the searches.
        most = OUTSIDE * LAYERS * (STEPS if "search" in part else 4)
        own = {key: (most, "") for key in counts if any(key[1].startswith(f"{file}: ") for file in outside)}
        broken = undeclared(counts, part, {**ALLOWED, **own})
        require(not broken, f"the processor waits for the device: {'; '.join(broken)}")
