"""Gradients of one update: exact means over all its batches, with one loss a pair of exits (design rule 8).

Shapes: B sentences, T target positions, S source positions, D model dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from sparsenmt.data.batching import Batch
from sparsenmt.model.interfaces import Encoded, Source, TranslationModel
from sparsenmt.training.loss import backward_through_projection

Normalization = Literal["tokens", "sentences"]


@dataclass(frozen=True)
class Totals:
    """What an update's losses are divided by: sums over all its batches, of all ranks."""

    target_tokens: int
    source_tokens: int
    sentences: int

    @staticmethod
    def of(batches: Sequence[Batch]) -> Totals:
        return Totals(
            sum(batch.target_tokens for batch in batches),
            sum(batch.source_tokens for batch in batches),
            sum(batch.sentences for batch in batches),
        )


@dataclass(frozen=True)
class Objective:
    """What is minimised: the likelihood and the auxiliary losses with their current weights."""

    smoothing: float
    normalization: Normalization
    auxiliary: Mapping[str, float]

    def token_weights(self, valid: Tensor, totals: Totals) -> Tensor:
        """valid (B, T) -> (N) weight of each real token's loss, in float64; an update's sum to 1."""
        lengths = valid.sum(1, keepdim=True, dtype=torch.float64)
        if self.normalization == "tokens":
            lengths = torch.full_like(lengths, totals.target_tokens)
        else:
            lengths = lengths * totals.sentences
        return (1.0 / lengths).expand_as(valid)[valid]

    def sentence_weights(self, source_valid: Tensor, totals: Totals) -> Tensor:
        """source_valid (B, S) -> (B) weight of each sentence's auxiliary losses, in float64; an update's sum to 1."""
        lengths = source_valid.sum(1, dtype=torch.float64)
        if self.normalization == "tokens":
            return lengths / totals.source_tokens
        return torch.full_like(lengths, 1.0 / totals.sentences)


@dataclass(frozen=True)
class BatchResult:
    """A batch's share of the update's losses (sums over an update give its means)."""

    loss: float
    nll: float  # sum over real target tokens, mean over pairs of exits
    auxiliary: Mapping[str, float]
    closed: Mapping[str, float] = field(default_factory=dict)  # loss -> share of source positions with gate 0
    partial: Mapping[str, float] = field(default_factory=dict)  # loss -> share of gates strictly between 0 and 1


def accumulate(model: TranslationModel, batch: Batch, objective: Objective, totals: Totals) -> BatchResult:
    """Add the gradients of one batch. The batch must be on the model's device.

    Encoder exits are detached, so that only one of them has a decoder's activations alive; one pass through the
    encoder ends it.
    """
    source = Source(batch.source, batch.source_valid, batch.features)
    encoded = model.encode(source, exits=model.plan.encoder_exits)
    target = batch.target_output[batch.target_valid]
    pairs = len(model.plan.encoder_exits) * len(model.plan.decoder_exits)
    weights = (objective.token_weights(batch.target_valid, totals) / pairs).to(_wide(encoded))
    loss, nll = 0.0, 0.0
    states, gradients = [], []
    for memory in encoded.memories.values():
        leaf = memory.states.detach().requires_grad_()
        exits = model.decode(batch.target_input, replace(memory, states=leaf), exits=model.plan.decoder_exits)
        rows, row_gradients = [], []
        for hidden in exits.values():
            real = hidden[batch.target_valid]  # (N, D): padding is never projected
            gradient, sums = backward_through_projection(model, real, target, weights, objective.smoothing)
            rows.append(real)
            row_gradients.append(gradient)
            loss += sums.loss
            nll += sums.nll / pairs
        torch.autograd.backward(rows, row_gradients)
        assert leaf.grad is not None
        states.append(memory.states)
        gradients.append(leaf.grad)
    auxiliary = _backward_encoder(encoded, states, gradients, batch, objective, totals)
    lengths = batch.source_valid.sum(1, dtype=torch.float64)
    weight = lengths / totals.source_tokens
    closed = {name: float((shares.closed * weight).sum()) for name, shares in encoded.shares.items()}
    partial = {name: float((shares.partial * weight).sum()) for name, shares in encoded.shares.items()}
    loss += sum(objective.auxiliary[name] * value for name, value in auxiliary.items())
    return BatchResult(loss, nll, auxiliary, closed, partial)


def _backward_encoder(
    encoded: Encoded,
    states: list[Tensor],
    gradients: list[Tensor],
    batch: Batch,
    objective: Objective,
    totals: Totals,
) -> dict[str, float]:
    roots, root_gradients = list(states), list(gradients)
    auxiliary = {}
    sentence_weights = objective.sentence_weights(batch.source_valid, totals).to(_wide(encoded))
    for name, values in encoded.losses.items():
        mean = (values * sentence_weights).sum()
        auxiliary[name] = float(mean.detach())
        weight = objective.auxiliary[name]
        if weight and mean.requires_grad:
            roots.append(mean)
            root_gradients.append(torch.full_like(mean, weight))
    torch.autograd.backward(roots, root_gradients)
    return auxiliary


def _wide(encoded: Encoded) -> torch.dtype:
    """What losses are summed in: fp32, or float64 where the model computes in it."""
    doubles = any(memory.states.dtype == torch.float64 for memory in encoded.memories.values())
    return torch.float64 if doubles else torch.float32
