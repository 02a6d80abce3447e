"""The workloads that are timed: searches, training updates and the reading of a text, of given sizes.

Tokens are random and lengths are forced, so that the amount of work is known exactly: every hypothesis has the maximum
length, and no batch has padding. The segment memory of a language model is full.

Shapes: B sentences, S source tokens with </s>, T target tokens with </s>; of a language model B rows of T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, Protocol

import numpy as np
import torch

from sparsenmt.data.batching import Batch, pad
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.beam import beam_search
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.decoding.text_scores import TextReader, TextReading
from sparsenmt.engine.build import build, packs
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.engine.training_operators import TrainingOperators
from sparsenmt.errors import UserError
from sparsenmt.model.operators import use_operators
from sparsenmt.model.protocol import Source
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.sockets import content_patterns
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.runtime import keep_freed_memory
from sparsenmt.recipe import schema
from sparsenmt.training.gradients import (
    Objective,
    UpdateTotals,
    accumulate_gradients,
    add_parameter_losses,
    clip_gradients,
)
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.segments import accumulate_segment_gradients
from sparsenmt.training.state import make_optimizer
from sparsenmt.workflows.evaluation.benchmark.flops import Arithmetic, count_arithmetic

Part = Literal["decoding", "generation", "scoring", "training"]


@dataclass(frozen=True)
class BenchmarkModel:
    """The model that is timed.

    Args:
        build: returns a new copy, unpacked, in fp32, on the CPU.
        source: the source tokenizer; None without a trained model.
        features: the source features that its methods read; None without a trained model.
    """

    name: str
    recipe: schema.Recipe
    build: Callable[[], Transformer]
    source_size: int
    target_size: int
    source: Tokenizer | None = None
    features: FeatureSet | None = None

    @cached_property
    def auxiliary(self) -> dict[str, float]:
        """Weights of the auxiliary losses of the model's methods; their values do not affect the time."""
        if self.recipe.data.is_language_model:
            return {}
        rows = [[EOS + 1, EOS]]
        with torch.no_grad():
            losses = self.build().encode(self.to_source(rows)).losses
        return dict.fromkeys(losses, 0.1)

    def random_rows(self, sentences: int, length: int, *, target: bool = False) -> list[list[int]]:
        """Return B rows of ``length`` tokens, the last one </s>; whole words where the model reads word features."""
        random = np.random.default_rng(0)
        tokens = np.arange(EOS + 1, self.target_size if target else self.source_size)
        if not target and self.source is not None and self.features is not None and self.features.names:
            words = tokens[self.source.word_starts[EOS + 1 :]]
            tokens = words if len(words) else tokens
        rows: list[list[int]] = random.choice(tokens, (sentences, length - 1)).tolist()
        return [[*row, EOS] for row in rows]

    def to_source(self, rows: Sequence[list[int]]) -> Source:
        """Return rows of tokens as a source with its features."""
        tokens, valid = pad(rows)
        if self.source is None or self.features is None or not self.features.names:
            return Source(tokens, valid, {})
        lines = [SourceLine(i, self.source.decode(row), row) for i, row in enumerate(rows)]
        computed = [self.features.compute(line.ids, line.text, line.tags) for line in lines]
        features = {name: pad([row[name] for row in computed])[0] for name in self.features.names}
        return Source(tokens, valid, features)


@dataclass(frozen=True)
class WorkloadSizes:
    """The sizes of one batch.

    Args:
        source_length: source tokens, </s> included; of a language model the tokens of a prompt, or 0.
        target_length: target tokens, </s> included: steps of the decoder; of a language model the tokens of a segment,
            or those that are generated.
        sentences: or the streams, texts or prompts of a language model.
    """

    source_length: int
    target_length: int
    sentences: int
    beam_size: int = 1

    @property
    def target_tokens(self) -> int:
        """Target tokens of all sentences."""
        return self.sentences * self.target_length


class Workload(Protocol):
    """Work that is timed."""

    kept_bytes: int | None
    """Bytes that a language model keeps of the positions before: keys and values; in training inputs of layers."""

    def run(self) -> None:
        """Do the work once."""

    def count(self) -> Arithmetic:
        """Count its arithmetic; in float64 where compiled kernels would hide products."""


def _engine(benchmarked: BenchmarkModel, dtype: torch.dtype, device: torch.device) -> Engine:
    """Return the engine of the model; UserError if this machine cannot decode in this data type."""
    model = benchmarked.build().to(device)
    if not packs(model, dtype):
        raise UserError(
            f"there are no matrix products in {str(dtype).removeprefix('torch.')} here",
            where="--dtype",
            hint="Take fp32 or bf16, or another device.",
        )
    return build(model, dtype, final=True)


class DecodingWorkload:
    """Beam search over one batch, as in `sparsenmt decode`: with packed weights, compacted where that is exact."""

    kept_bytes: int | None = None

    def __init__(
        self, benchmarked: BenchmarkModel, sizes: WorkloadSizes, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.sizes = sizes
        self._rows = benchmarked.random_rows(sizes.sentences, sizes.source_length)
        self._source = benchmarked.to_source(self._rows)
        self._options = benchmarked.recipe.decoding.model_copy(
            update={"beam_size": sizes.beam_size, "min_length": sizes.target_length, "no_repeat_ngram": 0}
        )
        self._device = device
        self._benchmarked = benchmarked
        self._engine = _engine(benchmarked, dtype, device)

    def run(self) -> None:
        """Search once."""
        self._search(self._engine, self._device)

    def count(self) -> Arithmetic:
        """Count the arithmetic of a search, in float64, which only PyTorch's own operators compute."""
        model = self._benchmarked.build().double().eval().to(self._device)
        return count_arithmetic(lambda: self._search(TorchEngine(model), self._device))

    @torch.inference_mode()
    def _search(self, engine: Engine, device: torch.device) -> None:
        tokens, valid = self._source.tokens.to(device), self._source.valid.to(device)
        features = {name: values.to(device) for name, values in self._source.features.items()}
        source = Source(tokens, valid, features)
        memory = engine.encode(source, exits=self._options.encoder_exits, compact=True).memory
        limits = torch.full((self.sizes.sentences,), self.sizes.target_length, device=device)
        found = beam_search(engine, memory, limits, self._options)
        assert all(len(each[0].tokens) == self.sizes.target_length for each in found)


class TrainingWorkload:
    """Updates on one batch, as in `sparsenmt train`: forward, loss, backward, clipping, optimizer."""

    kept_bytes: int | None = None

    def __init__(
        self, benchmarked: BenchmarkModel, sizes: WorkloadSizes, dtype: torch.dtype, device: torch.device
    ) -> None:
        keep_freed_memory()
        self.sizes = sizes
        self._benchmarked = benchmarked
        options = benchmarked.recipe.training
        self._objective = Objective(options.label_smoothing, options.loss_normalization, benchmarked.auxiliary)
        self._clip = options.clip_norm, options.clip
        self._device = device
        self._model = benchmarked.build().to(device).train()
        use_operators(self._model, TrainingOperators(device))
        self._weights = MasterWeights(self._model, dtype)
        self._optimizer = make_optimizer(self._weights, options.optimizer)
        for group in self._optimizer.param_groups:
            group["lr"] = 1e-5
        self._gradients = self.gradients(self._model, device)

    def run(self) -> None:
        """Do one update."""
        self._gradients()
        self._weights.collect()
        parameters = list(self._weights.named.values())
        clip_gradients(parameters, *self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, bounds in self._model.bounds().items():
                self._weights.named[name].clamp_(*bounds)
        for pattern in content_patterns(self._model.modules()):
            pattern.update()
        self._weights.publish()

    def count(self) -> Arithmetic:
        """Count the arithmetic of an update."""
        return count_arithmetic(self.gradients(self._benchmarked.build().train().to(self._device), self._device))

    def gradients(self, model: Transformer, device: torch.device) -> Callable[[], object]:
        """Make the function that adds the gradients of the batch."""
        subject, sizes = self._benchmarked, self.sizes
        source = subject.to_source(subject.random_rows(sizes.sentences, sizes.source_length))
        targets = subject.random_rows(sizes.sentences, sizes.target_length, target=True)
        batch = _batch(source, targets).to(device)
        return partial(accumulate_gradients, model, batch, self._objective, UpdateTotals.of([batch]))


class SegmentTrainingWorkload(TrainingWorkload):
    """Updates of a language model on one segment of every stream, after as many tokens as its memory holds."""

    def gradients(self, model: Transformer, device: torch.device) -> Callable[[], object]:
        rows, length = self.sizes.sentences, self.sizes.target_length
        ids = torch.tensor(self._benchmarked.random_rows(rows, length + 1, target=True), device=device)
        inputs, targets = ids[:, :-1], ids[:, 1:].contiguous()
        memory: SegmentMemory | None = None
        with torch.no_grad():
            for _ in range(_full(self._benchmarked.recipe.model.segment_memory, length)):
                _, memory = model.read_segment(inputs, memory)
        self.kept_bytes = 0 if memory is None else memory.bytes
        for pattern in content_patterns(model.modules()):
            pattern.forget()
        totals = UpdateTotals(targets.numel(), 0, rows)
        weights = dict.fromkeys(model.parameter_losses(), 1e-6)

        def add() -> None:
            accumulate_segment_gradients(model, inputs, targets, memory, self._objective, totals)
            add_parameter_losses(model, weights)

        return add


def _full(memory: int, length: int) -> int:
    """Segments after which a segment memory is full."""
    return -(-memory // length)


class ScoringWorkload:
    """A language model that reads a text, as in `sparsenmt score --text`, after as much text as its memory holds."""

    def __init__(
        self, benchmarked: BenchmarkModel, sizes: WorkloadSizes, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._benchmarked = benchmarked
        self._tokens = torch.tensor(benchmarked.random_rows(1, sizes.target_tokens, target=True)[0])
        self._device = device
        self._reader = self._filled(_engine(benchmarked, dtype, device), device)
        cache = self._reader.cache
        self.kept_bytes: int | None = 0 if cache is None else cache.kept.kept_bytes
        self._on_device = self._tokens.to(device)

    def run(self) -> None:
        """Read one segment; without a memory as many as are read together."""
        self._reader.read(self._on_device)

    def count(self) -> Arithmetic:
        """Count the arithmetic of a segment, in float64."""
        model = self._benchmarked.build().double().eval().to(self._device)
        reader = self._filled(TorchEngine(model), self._device)
        return count_arithmetic(lambda: reader.read(self._on_device))

    def _filled(self, engine: Engine, device: torch.device) -> TextReader:
        reading = TextReading.of(self._benchmarked.recipe)
        reader = TextReader(engine, reading, device)
        for _ in range(_full(reading.segment_memory, reading.segment_length)):
            reader.read(self._tokens.to(device))
        return reader


class GenerationWorkload:
    """The continuation of prompts of one length, as in `sparsenmt decode`: by greedy search, or by beam search."""

    def __init__(
        self, benchmarked: BenchmarkModel, sizes: WorkloadSizes, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.sizes = sizes
        self._benchmarked = benchmarked
        method = "greedy" if sizes.beam_size == 1 else "beam"
        changes = {"method": method, "beam_size": sizes.beam_size, "min_length": sizes.target_length}
        self._options = benchmarked.recipe.decoding.model_copy(update={**changes, "no_repeat_ngram": 0})
        rows = benchmarked.random_rows(sizes.sentences, sizes.source_length + 1, target=True)
        self._prompts = torch.tensor(rows)[:, :-1]
        self._engine, self._device = _engine(benchmarked, dtype, device), device
        self.kept_bytes: int | None = self._kept()

    def run(self) -> None:
        """Continue the prompts once."""
        self._search(self._engine, self._device)

    def count(self) -> Arithmetic:
        """Count the arithmetic of a search, in float64."""
        model = self._benchmarked.build().double().eval().to(self._device)
        return count_arithmetic(lambda: self._search(TorchEngine(model), self._device))

    @torch.inference_mode()
    def _search(self, engine: Engine, device: torch.device) -> None:
        count, length = self.sizes.sentences, self.sizes.target_length
        numbers = list(range(count))
        limits = torch.full((count,), length, device=device)
        batch = EncodedBatch(
            engine.encode(Source.none(count, device)).memory, limits, numbers, numbers, self._prompts.to(device)
        )
        found = list(strategy_of(self._options).search(engine, [batch], lambda _: nullcontext()))
        assert all(len(each[0].tokens) == length for part in found for each in part.values())

    @torch.inference_mode()
    def _kept(self) -> int:
        """The bytes at the end of the search: those of one hypothesis, as often as there are some."""
        sizes, engine, exits = self.sizes, self._engine, self._options.decoder_exits
        cache = engine.new_cache(engine.encode(Source.none(1, self._device)).memory, exits=exits)
        tokens = self._prompts.new_full((1, sizes.source_length + sizes.target_length), EOS).to(self._device)
        engine.step(tokens, cache)
        return cache.kept.kept_bytes * sizes.sentences * sizes.beam_size


def _batch(source: Source, targets: Sequence[list[int]]) -> Batch:
    output, valid = pad(targets)
    given, _ = pad([[BOS, *row[:-1]] for row in targets])
    return Batch(
        source=source.tokens,
        source_valid=source.valid,
        features=dict(source.features),
        target_input=given,
        target_output=output,
        target_valid=valid,
        corpus=None,
        indices=tuple(range(len(targets))),
    )
