"""Gradients of one update: exact means over all its batches, with one loss for each pair of exits (design rule 8).

Nothing is read from the device before the end of an update (design rule 18): `read_losses` reads all its numbers.
Shapes: B sentences, T target positions, S source positions, D model dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from sparsenmt.data.batching import Batch
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.protocol import Encoded, Source, TranslationModel
from sparsenmt.training.guided_alignment import NAME as GUIDED_ALIGNMENT
from sparsenmt.training.guided_alignment import GuidedHead
from sparsenmt.training.loss import backward_through_projection

Normalization = Literal["tokens", "sentences"]
ExitPairs = Mapping[tuple[int, int], float]
"""(encoder exit, decoder exit) -> share of the loss."""


@dataclass(frozen=True)
class UpdateTotals:
    """The denominators of an update's losses: sums over its batches in all processes."""

    target_tokens: int
    source_tokens: int
    sentences: int

    @staticmethod
    def of(batches: Sequence[Batch]) -> UpdateTotals:
        return UpdateTotals(
            sum(batch.target_tokens for batch in batches),
            sum(batch.source_tokens for batch in batches),
            sum(batch.sentences for batch in batches),
        )


@dataclass(frozen=True)
class Objective:
    """The training objective: the likelihood, and the auxiliary losses with their current weights."""

    smoothing: float
    normalization: Normalization
    auxiliary: Mapping[str, float]
    pairs: ExitPairs | None = None
    """Shares of the pairs of exits in the loss of this update; None: those of the model's depth plan."""

    def token_weights(self, valid: Tensor, totals: UpdateTotals) -> Tensor:
        """valid (B, T) -> (B, T) weight of each token's loss in float64, 0 at padding; those of an update sum to 1."""
        lengths = valid.sum(1, keepdim=True, dtype=torch.float64)
        if self.normalization == "tokens":
            lengths = torch.full_like(lengths, totals.target_tokens)
        else:
            lengths = lengths * totals.sentences
        return torch.where(valid, 1.0 / lengths, 0.0)

    def sentence_weights(self, source_valid: Tensor, totals: UpdateTotals) -> Tensor:
        """source_valid (B, S) -> (B) weight of each sentence in auxiliary losses, float64; an update sums to 1."""
        lengths = source_valid.sum(1, dtype=torch.float64)
        if self.normalization == "tokens":
            return lengths / totals.source_tokens
        return torch.full_like(lengths, 1.0 / totals.sentences)


@dataclass(frozen=True)
class BatchLosses:
    """A `BatchResult` on the device, where nothing waits for it: every number is a scalar in float64."""

    loss: Tensor
    nll: Tensor
    auxiliary: Mapping[str, Tensor]
    closed: Mapping[str, Tensor] = field(default_factory=dict)
    partial: Mapping[str, Tensor] = field(default_factory=dict)

    def numbers(self) -> list[Tensor]:
        """Return the numbers, in the order in which `result` takes them."""
        return [self.loss, self.nll, *self.auxiliary.values(), *self.closed.values(), *self.partial.values()]

    def result(self, numbers: Iterator[float]) -> BatchResult:
        """Return the result with these numbers, which are taken from an iterator."""
        loss, nll = next(numbers), next(numbers)
        parts = ({name: next(numbers) for name in part} for part in (self.auxiliary, self.closed, self.partial))
        return BatchResult(loss, nll, *parts)


@dataclass(frozen=True)
class BatchResult:
    """A batch's share of the update's losses (sums over an update give its means)."""

    loss: float
    nll: float  # sum over real target tokens, mean over pairs of exits by their shares
    auxiliary: Mapping[str, float]
    closed: Mapping[str, float] = field(default_factory=dict)  # loss, or filter without -> share of gates that are 0
    partial: Mapping[str, float] = field(default_factory=dict)  # the same -> share strictly between 0 and 1


def read_losses(batches: Sequence[BatchLosses], *others: Tensor) -> tuple[list[BatchResult], list[float]]:
    """Read the losses of some batches and other numbers from the device, all of them together.

    Args:
        others: of any shape, at least one.

    Returns:
        the results of the batches, and the other numbers one after the other.
    """
    tensors = [*(each for batch in batches for each in batch.numbers()), *others]
    numbers = iter(torch.cat([each.detach().double().flatten() for each in tensors]).tolist())
    return [batch.result(numbers) for batch in batches], list(numbers)


def accumulate_gradients(
    model: TranslationModel,
    batch: Batch,
    objective: Objective,
    totals: UpdateTotals,
    guided: GuidedHead | None = None,
) -> BatchLosses:
    """Add the gradients of one batch, which must be on the model's device.

    Encoder exits are detached, so that the decoder's activations of only one exit are alive at a time; one backward
    pass through the encoder follows.

    Args:
        guided: the head that the batch's links guide; None: none.
    """
    pairs = model.plan.pairs() if objective.pairs is None else objective.pairs
    shares = {n: sum(share for (other, _), share in pairs.items() if other == n) for n in sorted({n for n, _ in pairs})}
    # Losses are summed in fp32, or in float64 if the model computes in it.
    dtype = torch.promote_types(model.output_table.dtype, torch.float32)
    weights = objective.token_weights(batch.target_valid, totals).to(dtype)
    rows = TargetRows(batch.target_output, batch.target_valid, weights, batch.target_tokens)
    encoded = model.encode(Source(batch.source, batch.source_valid, batch.features), exits=tuple(shares))
    sums = torch.zeros(3, dtype=dtype, device=batch.target_output.device)  # loss, nll, guided alignment
    read = batch.target_valid.flip(1).cummax(1).values.flip(1)  # with a prefix that has no loss, which later ones see
    states, gradients = [], []
    for n, memory in encoded.memories.items():
        leaf = memory.states.detach().requires_grad_(memory.states.requires_grad)  # False: all before it is frozen
        own = {m: share for (other, m), share in pairs.items() if other == n}
        memory = replace(memory, states=leaf)
        hidden = model.decode(batch.target_input, memory, exits=tuple(own), valid=read)
        alignment = None
        if guided is not None and batch.links is not None:
            alignment = guided.loss(batch.links, weights * shares[n])
        more = [] if alignment is None else [alignment.surrogate]
        sums[:2] += rows.backward(model, hidden, own, objective.smoothing, more)
        if alignment is not None:
            sums[2] += alignment.value
        if leaf.grad is not None:
            states.append(encoded.memories[n].states)
            gradients.append(leaf.grad)
    sentence_weights = objective.sentence_weights(batch.source_valid, totals).to(dtype)
    auxiliary = _backward_encoder(encoded, states, gradients, objective.auxiliary, sentence_weights, shares)
    closed, partial = _mean_shares(encoded, batch, totals, shares, objective)
    loss, nll, aligned = sums.double()
    loss = loss + sum(objective.auxiliary[name] * value for name, value in auxiliary.items())
    if guided is not None:
        loss = loss + guided.weight * aligned
        auxiliary[GUIDED_ALIGNMENT] = aligned
    return BatchLosses(loss, nll, auxiliary, closed, partial)


class TargetRows:
    """The N target positions of a batch that are not padding: only these are projected.

    Args:
        targets: (B, T).
        valid: (B, T) bool.
        weights: (B, T) weight of each position's loss.
        count: N.
    """

    def __init__(self, targets: Tensor, valid: Tensor, weights: Tensor, count: int) -> None:
        self.count = count
        self.index = None if count == valid.numel() else _places(valid.flatten(), count)  # (N) of B * T
        self.target, self.weights = self._gather(targets.flatten()), self._gather(weights.flatten())

    def backward(
        self,
        model: TranslationModel,
        hidden: Mapping[int, Tensor],
        shares: Mapping[int, float],
        smoothing: float,
        more: Sequence[Tensor] = (),
    ) -> Tensor:
        """Backward from decoder exits with these shares; returns the sums of loss and log-likelihood, (2).

        Args:
            more: further losses of the same forward pass, scalars with their weights.
        """
        flat = {m: states.flatten(0, 1) for m, states in hidden.items()}  # (B * T, D)
        weights = torch.cat([shares[m] * self.weights for m in flat])  # (exits * N)
        gathered = torch.cat([self._gather(states.detach()) for states in flat.values()])
        targets = self.target.repeat(len(flat))
        gradient, losses = backward_through_projection(model, gathered, targets, weights, smoothing)
        del gathered
        parts = gradient.split(self.count)
        roots = [self._scatter(part, states) for part, states in zip(parts, flat.values(), strict=True)]
        del gradient, parts
        trained = [m for m, states in enumerate(flat.values()) if states.requires_grad]
        losses_too = [each for each in more if each.requires_grad]
        if trained or losses_too:
            states = list(flat.values())
            ends = [*(roots[m] for m in trained), *map(torch.ones_like, losses_too)]
            torch.autograd.backward([*(states[m] for m in trained), *losses_too], ends)
        nll = [shares[m] * part.sum() for m, part in zip(flat, losses.nll.split(self.count), strict=True)]
        return torch.stack([losses.loss @ weights, torch.stack(nll).sum()])

    def _gather(self, states: Tensor) -> Tensor:
        """(B * T, ...) -> (N, ...)."""
        return states if self.index is None else states.index_select(0, self.index)

    def _scatter(self, rows: Tensor, states: Tensor) -> Tensor:
        """(N, D) -> (B * T, D), zero at padding."""
        return rows if self.index is None else torch.zeros_like(states).index_copy_(0, self.index, rows)


def _places(valid: Tensor, count: int) -> Tensor:
    """(P) bool, ``count`` times True -> (count) where it is True."""
    if valid.device.type == "cpu":
        return valid.nonzero().squeeze(1)
    return valid.byte().argsort(descending=True, stable=True)[:count]  # `nonzero` would wait, to count


def add_parameter_losses(model: TranslationModel, weights: Mapping[str, float]) -> BatchLosses:
    """Add the gradients of the losses that depend on parameters alone: once an update, in one process."""
    found = model.parameter_losses()
    weighted = [weights[name] * value for name, value in found.items() if weights[name] and value.requires_grad]
    if weighted:
        torch.stack(weighted).sum().backward()
    values = {name: value.detach().double() for name, value in found.items()}
    none = model.output_table.new_zeros((), dtype=torch.float64)
    return BatchLosses(none + sum(weights[name] * value for name, value in values.items()), none, values)


def _backward_encoder(
    encoded: Encoded,
    states: list[Tensor],
    gradients: list[Tensor],
    weights: Mapping[str, float],
    sentence_weights: Tensor,
    shares: Mapping[int, float],
) -> dict[str, Tensor]:
    """Backward through the encoder from all exits and from the filters' losses; returns the mean losses by name."""
    roots, root_gradients = list(states), list(gradients)
    auxiliary = dict.fromkeys(weights, sentence_weights.new_zeros((), dtype=torch.float64))
    for n, decided in encoded.decided.items():
        for name, values in decided.losses.items():
            mean = (values * sentence_weights).sum() * shares[n]
            auxiliary[name] = auxiliary[name] + mean.detach()
            if weights[name] and mean.requires_grad:
                roots.append(mean)
                root_gradients.append(torch.full_like(mean, weights[name]))
    if roots:
        torch.autograd.backward(roots, root_gradients)
    return auxiliary


def _mean_shares(
    encoded: Encoded, batch: Batch, totals: UpdateTotals, shares: Mapping[int, float], objective: Objective
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The batch's contribution to the shares of gates that are 0, and strictly between 0 and 1, as `Decided.shares`."""
    weight = batch.source_valid.sum(1, dtype=torch.float64) / totals.source_tokens
    none = weight.new_zeros(())
    closed, partial = dict.fromkeys(objective.auxiliary, none), dict.fromkeys(objective.auxiliary, none)
    for n, decided in encoded.decided.items():
        part = shares[n] / sum(shares.values())
        for name, found in decided.shares.items():
            closed[name] = closed.get(name, none) + (found.closed * weight).sum() * part
            partial[name] = partial.get(name, none) + (found.partial * weight).sum() * part
    return closed, partial


def sample_exit_pairs(plan: DepthPlan, seed: Sequence[int]) -> ExitPairs:
    """Sample the pairs of exits of an update, with their shares of its loss.

    If the plan samples exits, all exits of a side are equally likely, and the shares are scaled up so that the
    expected gradient is the gradient of all pairs.

    Args:
        seed: the run's seed and the number of the update: a resumed run, and every process of a run, samples the same.
    """
    pairs = plan.pairs()
    if plan.drawn == (None, None):
        return pairs
    generator = np.random.default_rng(list(seed))
    sides, factor = [], 1.0
    for exits, count in zip((plan.encoder_exits, plan.decoder_exits), plan.drawn, strict=True):
        sides.append({int(n) for n in generator.choice(exits, count or len(exits), replace=False)})
        factor *= len(exits) / len(sides[-1])
    return {(n, m): share * factor for (n, m), share in pairs.items() if n in sides[0] and m in sides[1]}


def clip_gradients(
    parameters: Sequence[nn.Parameter], bound: float | None, clip: Literal["total", "tensor", "step"]
) -> tuple[Tensor, Tensor]:
    """Clip the gradients of an update on their device; a parameter without one is left out.

    With ``step``, gradients stay as they are, and the learning rate of a parameter is scaled instead. So the Adagrad of
    Sukhbaatar et al. 2019 shortens a step by the norm of its gradient, but sums the squares of the gradient itself.

    Returns:
        the norm of the whole gradient before, a scalar; with ``step`` the factor of each parameter's learning rate in
        float64, otherwise nothing, (0).
    """
    limit = math.inf if bound is None else bound
    if clip == "total":
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        return norm, norm.new_empty(0)
    gradients = [torch.zeros((), device=each.device) if each.grad is None else each.grad for each in parameters]
    norms = torch.stack([torch.linalg.vector_norm(each) for each in gradients])
    total = torch.linalg.vector_norm(norms)
    if clip == "step":
        return total, (limit / (norms.double() + 1e-10)).clamp_max(1.0)
    for parameter in parameters if bound is not None else ():
        nn.utils.clip_grad_norm_([parameter], limit)
    return total, norms.new_empty(0)


def fill_missing_gradients(plan: DepthPlan, parameters: Iterable[nn.Parameter]) -> None:
    """If exits are sampled, give a zero gradient to parameters that no sampled exit used.

    So their moments decay as with several processes, where summing the gradients creates zeros.
    """
    if plan.drawn == (None, None):
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
