"""The workloads that are timed: beam search and training updates of given sizes.

Tokens are random and lengths are forced, so that the amount of work is known exactly: every hypothesis has the maximum
length, and no batch has padding.

Shapes: B sentences, S source tokens with </s>, T target tokens with </s>.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from sparsenmt.data.batching import Batch, pad
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.beam import beam_search
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe import schema
from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients, clip_gradients
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.state import make_optimizer
from sparsenmt.workflows.benchmark.flops import Arithmetic, count_arithmetic

Part = Literal["decoding", "training"]


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
        source_length: source tokens, </s> included.
        target_length: target tokens, </s> included: steps of the decoder.
    """

    source_length: int
    target_length: int
    sentences: int
    beam_size: int = 1

    @property
    def target_tokens(self) -> int:
        """Target tokens of all sentences."""
        return self.sentences * self.target_length


class DecodingWorkload:
    """Beam search over one batch, as in `sparsenmt decode`: with packed weights, compacted where that is exact."""

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
        self._model = benchmarked.build().to(device)
        if not self._model.packs(dtype):
            raise UserError(
                f"there are no matrix products in {str(dtype).removeprefix('torch.')} here",
                where="--dtype",
                hint="Take fp32 or bf16, or another device.",
            )
        self._model.pack(dtype, final=True)

    def run(self) -> None:
        """Search once."""
        self._search(self._model, self._device)

    def count(self) -> Arithmetic:
        """Count the arithmetic of a search, in float64, which only PyTorch's own operators compute."""
        model = self._benchmarked.build().double().eval()
        return count_arithmetic(lambda: self._search(model, torch.device("cpu")))

    @torch.inference_mode()
    def _search(self, model: Transformer, device: torch.device) -> None:
        tokens, valid = self._source.tokens.to(device), self._source.valid.to(device)
        features = {name: values.to(device) for name, values in self._source.features.items()}
        source = Source(tokens, valid, features)
        encoded = model.encode(source, exits=self._options.encoder_exits, compact=True)
        (memory,) = encoded.memories.values()
        limits = torch.full((self.sizes.sentences,), self.sizes.target_length, device=device)
        found = beam_search(model, memory, limits, self._options)
        assert all(len(each[0].tokens) == self.sizes.target_length for each in found)


class TrainingWorkload:
    """Updates on one batch, as in `sparsenmt train`: forward, loss, backward, clipping, optimizer."""

    def __init__(
        self, benchmarked: BenchmarkModel, sizes: WorkloadSizes, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.sizes = sizes
        self._benchmarked = benchmarked
        options = benchmarked.recipe.training
        self._objective = Objective(options.label_smoothing, options.loss_normalization, benchmarked.auxiliary)
        self._clip = options.clip_norm, options.clip
        source = benchmarked.to_source(benchmarked.random_rows(sizes.sentences, sizes.source_length))
        self._batch = _batch(source, benchmarked.random_rows(sizes.sentences, sizes.target_length, target=True))
        self._on_device = self._batch.to(device)
        self._model = benchmarked.build().to(device).train()
        self._weights = MasterWeights(self._model, dtype)
        self._optimizer = make_optimizer(self._weights, options.optimizer)
        for group in self._optimizer.param_groups:
            group["lr"] = 1e-5

    def run(self) -> None:
        """Do one update."""
        self._gradients(self._model, self._on_device)
        self._weights.collect()
        parameters = list(self._weights.named.values())
        clip_gradients(parameters, *self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._weights.publish()

    def count(self) -> Arithmetic:
        """Count the arithmetic of an update."""
        model = self._benchmarked.build().train()
        return count_arithmetic(lambda: self._gradients(model, self._batch))

    def _gradients(self, model: Transformer, batch: Batch) -> None:
        accumulate_gradients(model, batch, self._objective, UpdateTotals.of([batch]))


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
