"""The workloads that are timed: searches, training updates and the reading of a text, of given sizes.

Tokens are random and lengths are forced, so that the amount of work is known exactly: every hypothesis has the maximum
length, and no batch has padding. The segment memory of a language model is full.

Shapes: B sentences, S source tokens with </s>, T target tokens with </s>; of a language model B rows of T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

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
from sparsenmt.engine.training_operators import use_training_operators
from sparsenmt.errors import UserError
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
        """Name -> weight of the auxiliary losses of the model's methods; the weights do not affect the time."""
        if self.recipe.data.is_language_model:
            return {}
        rows = [[EOS + 1, EOS]]
        with torch.no_grad():
            losses = self.build().encode(self.to_source(rows)).losses
        return dict.fromkeys(losses, 0.1)

    def random_rows(self, sentences: int, length: int, *, target: bool = False) -> list[list[int]]:
        """Return B rows of ``length`` random token ids, the last one </s>, of one side; the same ids at every call.

        Where the model reads word features, every source token begins a word.
        """
        random = np.random.default_rng(0)
        tokens = np.arange(EOS + 1, self.target_size if target else self.source_size)
        if not target and self.source is not None and self.features is not None and self.features.names:
            words = tokens[self.source.word_starts[EOS + 1 :]]
            tokens = words if len(words) else tokens
        rows: list[list[int]] = random.choice(tokens, (sentences, length - 1)).tolist()
        return [[*row, EOS] for row in rows]

    def to_source(self, rows: Sequence[list[int]]) -> Source:
        """Return rows of token ids as a source with its features, on the CPU."""
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


Work = tuple[Callable[[], object], int | None]
"""A function that does the work once, and the bytes that a language model keeps of earlier positions: keys and values;
in training the inputs of layers. None: the model translates."""


class InferenceWorkload(ABC):
    """Work of one engine on a batch of random tokens. UserError if this machine cannot decode in the data type."""

    def __init__(
        self, benchmarked: BenchmarkModel, sizes: WorkloadSizes, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._benchmarked, self._sizes, self._device = benchmarked, sizes, device
        model = benchmarked.build().to(device)
        if not packs(model, dtype):
            raise UserError(
                f"there are no matrix products in {str(dtype).removeprefix('torch.')} here",
                where="--dtype",
                hint="Take fp32 or bf16, or another device.",
            )
        self._run, self.kept_bytes = self._prepared(build(model, dtype, final=True))

    def run(self) -> None:
        """Do the work once."""
        self._run()

    def count(self) -> Arithmetic:
        """Count the arithmetic, in float64, which only PyTorch's own operators compute."""
        model = self._benchmarked.build().double().eval().to(self._device)
        return count_arithmetic(self._prepared(TorchEngine(model))[0])

    @abstractmethod
    def _prepared(self, engine: Engine) -> Work:
        """Prepare the work of an engine, up to what is timed."""


class DecodingWorkload(InferenceWorkload):
    """Beam search over one batch, as in `sparsenmt decode`: with packed weights, compacted where that is exact."""

    def _prepared(self, engine: Engine) -> Work:
        sizes, device = self._sizes, self._device
        given = self._benchmarked.to_source(self._benchmarked.random_rows(sizes.sentences, sizes.source_length))
        options = self._benchmarked.recipe.decoding.model_copy(
            update={"beam_size": sizes.beam_size, "min_length": sizes.target_length, "no_repeat_ngram": 0}
        )

        @torch.inference_mode()
        def search() -> None:
            features = {name: values.to(device) for name, values in given.features.items()}
            source = Source(given.tokens.to(device), given.valid.to(device), features)
            memory = engine.encode(source, exits=options.encoder_exits, compact=True).memory
            limits = torch.full((sizes.sentences,), sizes.target_length, device=device)
            found = beam_search(engine, memory, limits, options)
            assert all(len(each[0].tokens) == sizes.target_length for each in found)

        return search, None


class TrainingWorkload:
    """Updates on one batch, as in `sparsenmt train`: forward, loss, backward, clipping, optimizer."""

    def __init__(
        self, benchmarked: BenchmarkModel, sizes: WorkloadSizes, dtype: torch.dtype, device: torch.device
    ) -> None:
        keep_freed_memory()
        self._benchmarked, self._sizes, self._device = benchmarked, sizes, device
        options = benchmarked.recipe.training
        self._objective = Objective(options.label_smoothing, options.loss_normalization, benchmarked.auxiliary)
        self._clip = options.clip_norm, options.clip
        self._model = benchmarked.build().to(device).train()
        use_training_operators(self._model, device)
        self._weights = MasterWeights(self._model, dtype)
        self._optimizer = make_optimizer(self._weights, options.optimizer)
        for group in self._optimizer.param_groups:
            group["lr"] = 1e-5
        self._add_gradients, self.kept_bytes = self._gradients(self._model)

    def run(self) -> None:
        """Do one update."""
        self._add_gradients()
        self._weights.collect()
        parameters = list(self._weights.named.values())
        norm, _ = clip_gradients(parameters, *self._clip)
        norm.item()  # as in training, an update waits for the device once
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, bounds in self._model.bounds().items():
                self._weights.named[name].clamp_(*bounds)
        for pattern in content_patterns(self._model.modules()):
            pattern.update()
        self._weights.publish()

    def count(self) -> Arithmetic:
        """Count the arithmetic of the gradients."""
        return count_arithmetic(self._gradients(self._benchmarked.build().train().to(self._device))[0])

    def _gradients(self, model: Transformer) -> Work:
        """Prepare the gradients of the batch, which the function adds to those of the model's parameters."""
        subject, sizes = self._benchmarked, self._sizes
        source = subject.to_source(subject.random_rows(sizes.sentences, sizes.source_length))
        targets = subject.random_rows(sizes.sentences, sizes.target_length, target=True)
        output, valid = pad(targets)
        given, _ = pad([[BOS, *row[:-1]] for row in targets])
        batch = Batch(
            source=source.tokens,
            source_valid=source.valid,
            features=dict(source.features),
            target_input=given,
            target_output=output,
            target_valid=valid,
            corpus=None,
            indices=tuple(range(len(targets))),
        ).to(self._device)
        return partial(accumulate_gradients, model, batch, self._objective, UpdateTotals.of([batch])), None


class SegmentTrainingWorkload(TrainingWorkload):
    """Updates of a language model on one segment of every stream, after as many tokens as its memory holds."""

    def _gradients(self, model: Transformer) -> Work:
        rows, length = self._sizes.sentences, self._sizes.target_length
        ids = torch.tensor(self._benchmarked.random_rows(rows, length + 1, target=True), device=self._device)
        inputs, targets = ids[:, :-1], ids[:, 1:].contiguous()
        memory: SegmentMemory | None = None
        with torch.no_grad():
            for _ in range(_full(self._benchmarked.recipe.model.segment_memory, length)):
                _, memory = model.read_segment(inputs, memory)
        for pattern in content_patterns(model.modules()):
            pattern.forget()
        totals = UpdateTotals(targets.numel(), 0, rows)
        weights = dict.fromkeys(model.parameter_losses(), 1e-6)

        def add() -> None:
            accumulate_segment_gradients(model, inputs, targets, memory, self._objective, totals)
            add_parameter_losses(model, weights)

        return add, 0 if memory is None else memory.bytes


def _full(memory: int, length: int) -> int:
    """Return the number of segments after which a segment memory of as many positions is full."""
    return -(-memory // length)


class ScoringWorkload(InferenceWorkload):
    """A language model that reads a text, as in `sparsenmt score --text`, after as much text as its memory holds.

    One segment is read; without a memory as many as are read together.
    """

    def _prepared(self, engine: Engine) -> Work:
        tokens = torch.tensor(self._benchmarked.random_rows(1, self._sizes.target_tokens, target=True)[0])
        tokens, reading = tokens.to(self._device), TextReading.of(self._benchmarked.recipe)
        reader = TextReader(engine, reading, self._device)
        for _ in range(_full(reading.segment_memory, reading.segment_length)):
            reader.read(tokens)
        return partial(reader.read, tokens), 0 if reader.cache is None else reader.cache.kept.kept_bytes


class GenerationWorkload(InferenceWorkload):
    """The continuation of prompts of one length, as in `sparsenmt decode`: by greedy search, or by beam search."""

    def _prepared(self, engine: Engine) -> Work:
        sizes, device = self._sizes, self._device
        method = "greedy" if sizes.beam_size == 1 else "beam"
        changes = {"method": method, "beam_size": sizes.beam_size, "min_length": sizes.target_length}
        options = self._benchmarked.recipe.decoding.model_copy(update={**changes, "no_repeat_ngram": 0})
        rows = self._benchmarked.random_rows(sizes.sentences, sizes.source_length + 1, target=True)
        prompts = torch.tensor(rows)[:, :-1]

        @torch.inference_mode()
        def search() -> None:
            numbers = list(range(sizes.sentences))
            limits = torch.full((sizes.sentences,), sizes.target_length, device=device)
            memory = engine.encode(Source.none(sizes.sentences, device)).memory
            batch = EncodedBatch(memory, limits, numbers, numbers, prompts.to(device))
            found = list(strategy_of(options).search(engine, [batch], lambda _: nullcontext()))
            assert all(len(each[0].tokens) == sizes.target_length for part in found for each in part.values())

        with torch.inference_mode():  # one hypothesis at the end of the search
            cache = engine.new_cache(engine.encode(Source.none(1, device)).memory, exits=options.decoder_exits)
            engine.step(prompts.new_full((1, sizes.source_length + sizes.target_length), EOS).to(device), cache)
        return search, cache.kept.kept_bytes * sizes.sentences * sizes.beam_size
