"""Gradients of one update: exact means over all its batches, with one loss for each pair of exits (design rule 8).

Shapes: B sentences, T target positions, S source positions, D model dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
        """valid (B, T) -> (N) weight of each token's loss in float64; the weights of an update sum to 1."""
        lengths = valid.sum(1, keepdim=True, dtype=torch.float64)
        if self.normalization == "tokens":
            lengths = torch.full_like(lengths, totals.target_tokens)
        else:
            lengths = lengths * totals.sentences
        return (1.0 / lengths).expand_as(valid)[valid]

    def sentence_weights(self, source_valid: Tensor, totals: UpdateTotals) -> Tensor:
        """source_valid (B, S) -> (B) weight of each sentence in auxiliary losses, float64; an update sums to 1."""
        lengths = source_valid.sum(1, dtype=torch.float64)
        if self.normalization == "tokens":
            return lengths / totals.source_tokens
        return torch.full_like(lengths, 1.0 / totals.sentences)


@dataclass(frozen=True)
class BatchResult:
    """A batch's share of the update's losses (sums over an update give its means)."""

    loss: float
    nll: float  # sum over real target tokens, mean over pairs of exits by their shares
    auxiliary: Mapping[str, float]
    closed: Mapping[str, float] = field(default_factory=dict)  # loss, or filter without -> share of gates that are 0
    partial: Mapping[str, float] = field(default_factory=dict)  # the same -> share strictly between 0 and 1


def accumulate_gradients(
    model: TranslationModel,
    batch: Batch,
    objective: Objective,
    totals: UpdateTotals,
    guided: GuidedHead | None = None,
) -> BatchResult:
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
    # Before the encoder's work is queued: both read from the device, which first finishes all that is in its queue.
    weights = objective.token_weights(batch.target_valid, totals).to(dtype)
    rows = TargetRows(batch.target_output, batch.target_valid, weights)
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
            alignment = guided.loss(batch.links, rows.token_weights(batch.target_valid) * shares[n])
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
    loss, nll, aligned = sums.tolist()
    loss += sum(objective.auxiliary[name] * value for name, value in auxiliary.items())
    if guided is not None:
        loss += guided.weight * aligned
        auxiliary[GUIDED_ALIGNMENT] = aligned
    return BatchResult(loss, nll, auxiliary, closed, partial)


class TargetRows:
    """The N target positions of a batch that are not padding: only these are projected.

    Args:
        targets: (B, T).
        valid: (B, T) bool.
        weights: (N) weight of each position's loss.
    """

    def __init__(self, targets: Tensor, valid: Tensor, weights: Tensor) -> None:
        self.weights = weights
        self.index = valid.flatten().nonzero().squeeze(1)  # (N) of B * T
        self.target = targets.flatten()[self.index]
        self.all = len(self.index) == valid.numel()

    def token_weights(self, valid: Tensor) -> Tensor:
        """(B, T) bool -> (B, T) the weights in their places, 0 at padding."""
        return torch.zeros(valid.shape, dtype=self.weights.dtype, device=valid.device).masked_scatter(
            valid, self.weights
        )

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
        share = torch.tensor([shares[m] for m in flat], dtype=self.weights.dtype, device=self.weights.device)
        weights = (share[:, None] * self.weights).flatten()  # (exits * N)
        gathered = torch.cat([self._gather(states.detach()) for states in flat.values()])
        targets = self.target.repeat(len(flat))
        gradient, losses = backward_through_projection(model, gathered, targets, weights, smoothing)
        del gathered
        parts = gradient.split(len(self.index))
        roots = [self._scatter(part, states) for part, states in zip(parts, flat.values(), strict=True)]
        del gradient, parts
        trained = [m for m, states in enumerate(flat.values()) if states.requires_grad]
        losses_too = [each for each in more if each.requires_grad]
        if trained or losses_too:
            states = list(flat.values())
            ends = [*(roots[m] for m in trained), *map(torch.ones_like, losses_too)]
            torch.autograd.backward([*(states[m] for m in trained), *losses_too], ends)
        nll = losses.nll.view(len(flat), -1).sum(1)
        return torch.stack([losses.loss @ weights, nll @ share])

    def _gather(self, states: Tensor) -> Tensor:
        """(B * T, D) -> (N, D)."""
        return states if self.all else states.index_select(0, self.index)

    def _scatter(self, rows: Tensor, states: Tensor) -> Tensor:
        """(N, D) -> (B * T, D), zero at padding."""
        return rows if self.all else torch.zeros_like(states).index_copy_(0, self.index, rows)


def add_parameter_losses(model: TranslationModel, weights: Mapping[str, float]) -> BatchResult:
    """Add the gradients of the losses that depend on parameters alone: once an update, in one process."""
    found = model.parameter_losses()
    weighted = [weights[name] * value for name, value in found.items() if weights[name] and value.requires_grad]
    if weighted:
        torch.stack(weighted).sum().backward()
    values = {name: float(value.detach()) for name, value in found.items()}
    return BatchResult(sum(weights[name] * value for name, value in values.items()), 0.0, values)


def _backward_encoder(
    encoded: Encoded,
    states: list[Tensor],
    gradients: list[Tensor],
    weights: Mapping[str, float],
    sentence_weights: Tensor,
    shares: Mapping[int, float],
) -> dict[str, float]:
    """Backward through the encoder from all exits and from the filters' losses; returns the mean losses by name."""
    roots, root_gradients = list(states), list(gradients)
    auxiliary = dict.fromkeys(weights, 0.0)
    for n, decided in encoded.decided.items():
        for name, values in decided.losses.items():
            mean = (values * sentence_weights).sum() * shares[n]
            auxiliary[name] += float(mean.detach())
            if weights[name] and mean.requires_grad:
                roots.append(mean)
                root_gradients.append(torch.full_like(mean, weights[name]))
    if roots:
        torch.autograd.backward(roots, root_gradients)
    return auxiliary


def _mean_shares(
    encoded: Encoded, batch: Batch, totals: UpdateTotals, shares: Mapping[int, float], objective: Objective
) -> tuple[dict[str, float], dict[str, float]]:
    """The batch's contribution to the shares of gates that are 0, and strictly between 0 and 1, as `Decided.shares`."""
    closed, partial = dict.fromkeys(objective.auxiliary, 0.0), dict.fromkeys(objective.auxiliary, 0.0)
    weight = batch.source_valid.sum(1, dtype=torch.float64) / totals.source_tokens
    for n, decided in encoded.decided.items():
        part = shares[n] / sum(shares.values())
        for name, found in decided.shares.items():
            closed[name] = closed.get(name, 0.0) + float((found.closed * weight).sum()) * part
            partial[name] = partial.get(name, 0.0) + float((found.partial * weight).sum()) * part
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
) -> tuple[float, list[float]]:
    """Clip the gradients of an update; a parameter without one is left out.

    With ``step``, gradients stay as they are, and the learning rate of a parameter is scaled instead. So the Adagrad of
    Sukhbaatar et al. 2019 shortens a step by the norm of its gradient, but sums the squares of the gradient itself.

    Returns:
        the norm of the whole gradient before, and the factor of each parameter's learning rate.
    """
    factors, limit = [1.0] * len(parameters), math.inf if bound is None else bound
    if clip == "total":
        return float(nn.utils.clip_grad_norm_(parameters, limit)), factors
    gradients = [torch.zeros((), device=each.device) if each.grad is None else each.grad for each in parameters]
    norms = torch.stack([torch.linalg.vector_norm(each) for each in gradients]).cpu()  # one copy from the device
    if clip == "step":
        factors = [min(limit / (norm + 1e-10), 1.0) for norm in norms.tolist()]
    elif bound is not None:
        for parameter in parameters:
            nn.utils.clip_grad_norm_([parameter], bound)
    return float(torch.linalg.vector_norm(norms)), factors


def fill_missing_gradients(plan: DepthPlan, parameters: Iterable[nn.Parameter]) -> None:
    """If exits are sampled, give a zero gradient to parameters that no sampled exit used.

    So their moments decay as with several processes, where summing the gradients creates zeros.
    """
    if plan.drawn == (None, None):
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
