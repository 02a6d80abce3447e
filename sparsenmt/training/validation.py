"""Validation: the loss on the validation set, and metrics of its translations, in fp32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch

from sparsenmt.data.batching import IndexBatch, collate, length_batches
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.frame import NO_FRAMES, FramePair
from sparsenmt.engine.contract import Engine
from sparsenmt.model.protocol import Source
from sparsenmt.training.loss import negative_log_likelihood


class WithEngine(Protocol):
    """A model that decodes, with what its metrics need beside it."""

    @property
    def engine(self) -> Engine: ...


M = TypeVar("M", bound=WithEngine)


class Validator(Generic[M]):
    """Computes the loss and the metrics with a model of its own, which exists during a validation only.

    So neither its weights, also packed, nor the buffers of its searches take memory from the updates.

    Args:
        make: makes a model with these weights, in fp32, ready for decoding.
        dev: the validation set.
        metrics: name -> function that computes the metric with that model; called after the loss.
        depth: exits of the encoder and of the decoder that are evaluated; None: the deepest.
        frames: the tokens around sources and targets, of the recipe's languages.
        most: sentences of the validation set for the loss, from the first; None: all.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, torch.Tensor]], M],
        dev: Dataset,
        metrics: Mapping[str, Callable[[M], float]],
        *,
        device: torch.device,
        batch_tokens: int,
        depth: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
        frames: FramePair = NO_FRAMES,
        most: int | None = None,
    ) -> None:
        self._make, self._dev, self._metrics = make, dev, dict(metrics)
        self._encoder_exits, self._decoder_exits = depth
        self._device, self._batch_tokens, self._frames, self._most = device, batch_tokens, frames, most

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, float]:
        """Validate these weights; returns values by name.

        ``loss`` is the mean negative log-likelihood of a target token in nats, without label smoothing;
        ``NAME_closed``, for each auxiliary loss, the share of source positions that its filters close.
        """
        model = self._make(weights)
        values = self._losses(model.engine)
        values.update({name: measure(model) for name, measure in self._metrics.items()})
        return values

    @torch.inference_mode()
    def _losses(self, engine: Engine) -> dict[str, float]:
        total, tokens, positions = 0.0, 0, 0
        closed: dict[str, float] = {}
        more = self._frames.source.size, self._frames.target.size
        lengths = np.maximum(self._dev.source_lengths + more[0], self._dev.target_lengths + more[1])
        for chosen in length_batches(lengths[: self._most], self._batch_tokens):
            index = IndexBatch(np.zeros(len(chosen), dtype=np.int64), np.asarray(chosen, dtype=np.int64))
            batch = collate([self._dev], index, self._frames).to(self._device)
            source = Source(batch.source, batch.source_valid, batch.features)
            encoded = engine.encode(source, exits=self._encoder_exits, compact=True)
            cache = engine.new_cache(encoded.memory, exits=self._decoder_exits, at_once=True)
            hidden, real = engine.step(batch.target_input, cache), batch.target_valid
            nll = negative_log_likelihood(engine.project, hidden[real], batch.target_output[real])
            total += float(nll.sum())
            tokens += batch.target_tokens
            positions += batch.source_tokens
            source_lengths = batch.source_valid.sum(1)
            (decided,) = encoded.decided.values()
            for name, shares in decided.shares.items():
                closed[name] = closed.get(name, 0.0) + float((shares.closed * source_lengths).sum())
        means = {f"{name}_closed": value / max(positions, 1) for name, value in closed.items()}
        return {"loss": total / max(tokens, 1), **means}
