"""Small models and batches, and the training objective written down naively."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.data.batching import Batch, EpochPlan, pad
from sparsenmt.data.corpus_mixture import CorpusMixture
from sparsenmt.data.dataset import Dataset, DatasetWriter
from sparsenmt.data.tokenizers.sampled_division import SampledDivision
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.layers import BlockOptions, SiteHeads
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.sockets import Gates, MemoryFilter, Transform
from sparsenmt.model.stacks import SiteModules
from sparsenmt.model.transformer import PositionOptions, Transformer, Vocabulary
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import Training
from sparsenmt.sparsity.softmax import Softmax
from sparsenmt.storage.records import typed
from sparsenmt.training.gradients import Objective
from sparsenmt.training.loop import Trainer, Validate
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.sentence_pairs import TranslationTask
from sparsenmt.training.state import Progress

PIECES = 17
PLAIN = DepthPlan((0, 1), (0, 1), (2,), (2,))
SHALLOW = DepthPlan((0,), (0,), (1,), (1,))
EXITS = DepthPlan((0, 1), (0, 1, 0), (1, 2), (2, 3))
"""Two exits on each side, and a decoder block that is executed twice."""
DRAWN = dataclasses.replace(EXITS, weights=((1.0, 2.0), (3.0, 4.0)), drawn=(1, 1))
"""One of them an update."""


def read_progress(text: str | bytes) -> Progress:
    """As a checkpoint reads it."""
    return typed(json.loads(text), Progress, Path("progress.json"), hint="")


class Dimmer(MemoryFilter):
    """Scales every entry by a learned gate; two losses: the mean gate, and one that knows the length."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.linspace(-1, 1, dimension))

    def forward(self, memory: Memory) -> Gates:
        values = torch.sigmoid(memory.states @ self.direction.to(memory.states.dtype))
        real = values * memory.valid
        return Gates(values, losses={"open": real.sum(1) / memory.valid.sum(1), "mass": (real**2).sum(1)})


def small_model(
    seed: int = 1,
    *,
    plan: DepthPlan = PLAIN,
    filtered: bool = False,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float64,
    pieces: int = PIECES,
    dimension: int = 16,
    transform: Callable[[], Transform] = Softmax,
) -> Transformer:
    """A Transformer with one table for everything."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        site = SiteModules(SiteHeads(2), lambda *place: transform())
        model = Transformer(
            BlockOptions(dimension, 32, "pre", "relu", dropout, dropout, dropout),
            Vocabulary(pieces, pieces, "all"),
            PositionOptions("sinusoidal", 64),
            plan,
            (site, site, site),
            output=[Dimmer(dimension)] if filtered else [],
        )
    return model.to(dtype)


def make_batch(rows: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """A batch of (source, target) ids, without EOS."""
    source, source_valid = pad([[*s, EOS] for s, _ in rows])
    target_output, target_valid = pad([[*t, EOS] for _, t in rows])
    target_input, _ = pad([[BOS, *t] for _, t in rows])
    return Batch(source, source_valid, {}, target_input, target_output, target_valid, None, tuple(range(len(rows))))


def pairs(count: int, seed: int = 0, longest: int = 9) -> list[tuple[list[int], list[int]]]:
    """Random sentence pairs of different lengths."""
    draw = random.Random(seed)

    def sentence() -> list[int]:
        return [draw.randrange(4, PIECES) for _ in range(draw.randint(1, longest))]

    return [(sentence(), sentence()) for _ in range(count)]


def naive_loss(model: Transformer, batches: Sequence[Batch], objective: Objective) -> Tensor:
    """The definition: mean over pairs of exits of the (smoothed) cross-entropy, plus weighted auxiliary losses.

    Sentence by sentence, without padding, whole logits, one graph.
    """
    exits = [(n, m) for n in model.plan.encoder_exits for m in model.plan.decoder_exits]
    tokens = sum(int(batch.target_valid.sum()) for batch in batches)
    source_tokens = sum(int(batch.source_valid.sum()) for batch in batches)
    sentences = sum(batch.sentences for batch in batches)
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        for i in range(batch.sentences):
            length, wanted = int(batch.source_valid[i].sum()), batch.target_output[i][batch.target_valid[i]]
            source = Source(batch.source[i : i + 1, :length], torch.ones(1, length, dtype=torch.bool))
            encoded = model.encode(source, exits=model.plan.encoder_exits)
            for n, m in exits:
                inputs = batch.target_input[i : i + 1, : len(wanted)]
                hidden = model.decode(inputs, encoded.memories[n], exits=model.plan.decoder_exits)[m]
                losses = F.cross_entropy(
                    model.project(hidden)[0], wanted, reduction="none", label_smoothing=objective.smoothing
                )
                share = losses.sum() / tokens if objective.normalization == "tokens" else losses.mean() / sentences
                total = total + share / len(exits)
            for name, values in encoded.losses.items():
                weight = length / source_tokens if objective.normalization == "tokens" else 1 / sentences
                total = total + objective.auxiliary[name] * weight * values.sum()
    return total


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """By name; parameters without one have zeros."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()
    }


def write_dataset(directory: Path, count: int = 60, seed: int = 0) -> Dataset:
    """A corpus whose target is its source backwards: it can be learned."""
    rows = [(source, source[::-1]) for source, _ in pairs(count, seed, longest=6)]
    return dataset_of(directory, rows)


def dataset_of(
    directory: Path,
    rows: Sequence[tuple[list[int], list[int]]],
    *,
    name: str = "toy",
    lines: Sequence[int] | None = None,
) -> Dataset:
    """Pairs as a corpus; ``lines``, from 0, are those of the text that they came from."""
    directory.mkdir(parents=True, exist_ok=True)
    with DatasetWriter(directory, name=name, source_size=PIECES, target_size=PIECES) as writer:
        writer.append([source for source, _ in rows], [target for _, target in rows], lines or range(len(rows)))
    return Dataset(directory)


@dataclass
class Script:
    """A validation that gives values from a list, the last one for ever."""

    values: list[float]
    calls: int = 0

    def __call__(self, weights: Mapping[str, Tensor]) -> Mapping[str, float]:
        value = self.values[min(self.calls, len(self.values) - 1)]
        self.calls += 1
        return {"loss": value, "open_closed": 0.0, "mass_closed": 0.0}


def training_options(**values: object) -> Training:
    """Few small updates."""
    usual = {
        "max_updates": 12,
        "batch_tokens": 60,
        "learning_rate": 3e-3,
        "warmup_updates": 2,
        "log_every": 2,
        "save_every": 1000,
        "validation": {"every": 1000, "metric": "loss"},
        "device": "cpu",
        "compute_dtype": "fp32",
    }
    return Training.model_validate({**usual, **values})


def make_trainer(
    directory: Path,
    dataset: Dataset,
    options: Training,
    *,
    model: Transformer | None = None,
    validate: Validate | None = None,
    workers: Workers | None = None,
    dtype: torch.dtype = torch.float32,
    division: SampledDivision | None = None,
    mixture: CorpusMixture | None = None,
    device: torch.device | None = None,
) -> Trainer:
    """A trainer of a small fp32 model."""
    directory.mkdir(parents=True, exist_ok=True)
    model = model if model is not None else small_model(dtype=torch.float32)
    plan = EpochPlan([dataset], [1.0], options.batch_tokens, options.seed)
    workers, device = workers or Workers(), device or torch.device("cpu")
    return Trainer(
        model,
        MasterWeights(model, dtype),
        TranslationTask(model, [dataset], plan, options, workers, device, division=division, mixture=mixture),
        options,
        losses={},
        directory=directory,
        validate=validate or Script([1.0]),
        workers=workers,
        device=device,
    )


def plan_of(trainer: Trainer) -> EpochPlan:
    """The batches of a trainer that `make_trainer` made."""
    assert isinstance(trainer.task, TranslationTask)
    return trainer.task.plan
