"""A model as training sees it, and what it tells observers.

Shapes: B sentences, R hypotheses a sentence, J hypotheses that are still open, H heads, Q queries, K keys, S source
positions, T target positions, D model dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.memory import Memory
from sparsenmt.model.operators import Operators
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.sites import SiteName
from sparsenmt.model.sockets import Gates, Keys

NEVER = -1e9
"""Output bias of a token whose probability is exactly 0."""


@dataclass(frozen=True)
class Source:
    """A batch of source sentences."""

    tokens: Tensor  # (B, S) token ids, </s> last, padded
    valid: Tensor  # (B, S) bool, False at padding
    features: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B, S)

    @staticmethod
    def none(rows: int, device: torch.device) -> Source:
        """Make the empty source of as many texts of a language model."""
        nothing = torch.empty(rows, 0, dtype=torch.long, device=device)
        return Source(nothing, nothing.bool())


@dataclass(frozen=True)
class GateShares:
    """Shares of a sentence's real source positions, by the gates in evaluation."""

    closed: Tensor  # (B,) of `GatesSeen.closed`
    partial: Tensor  # (B,) of `GatesSeen.partial`


@dataclass(frozen=True)
class Decided:
    """Losses and shares of the filters on the way to an exit, each the mean over the filters."""

    losses: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B,)
    shares: Mapping[str, GateShares] = field(default_factory=dict)  # name of a loss, or filter without -> its gates


@dataclass(frozen=True)
class Encoded:
    """The encoder's result for the requested exits: memories, and the filters' losses and shares."""

    memories: Mapping[int, Memory]  # encoder depth n -> memory
    decided: Mapping[int, Decided]

    @property
    def memory(self) -> Memory:
        """The memory of the one exit that was requested."""
        (memory,) = self.memories.values()
        return memory

    @property
    def losses(self) -> dict[str, Tensor]:
        """Name -> (B,): the mean over the exits; an exit without filters counts as 0."""
        found: dict[str, list[Tensor]] = {}
        for decided in self.decided.values():
            for name, values in decided.losses.items():
                found.setdefault(name, []).append(values)
        return {name: torch.stack(each).sum(0) / len(self.decided) for name, each in found.items()}


@dataclass(frozen=True)
class AttentionSeen:
    """The weights of one attention, passed to listeners: fixed heads first, then learned heads."""

    site: SiteName
    step: int
    weights: Tensor  # (B, H, Q, K)
    keys: Keys
    normalised: bool = True  # False: those of a learned head's query need not sum to 1

    @property
    def shares(self) -> Tensor:
        """(B, H, Q, K) the weights, over the sum of their query if they need not sum to 1."""
        return self.weights if self.normalised else weight_shares(self.weights)


def weight_shares(weights: Tensor) -> Tensor:
    """(B, H, Q, K) -> the shares of every query's sum; zero where it is zero."""
    sums = weights.sum(-1, keepdim=True)
    return weights / sums.masked_fill(sums == 0, 1.0)


class AttentionListener(Protocol):
    def __call__(self, seen: AttentionSeen) -> None: ...


@dataclass(frozen=True)
class GatesSeen:
    """The input and the decision of one memory filter, passed to listeners."""

    depth: int  # encoder steps executed before it
    place: Literal["between", "output"]
    index: int  # of the filter at its place
    memory: Memory
    gates: Gates
    source: Tensor  # (B, S) bool: the real source positions
    evaluated: Tensor  # (B, S) their gates after this filter in evaluation; 0 where one masks or has closed for good

    @property
    def closed(self) -> Tensor:
        """(B, S) bool: the real source positions whose gate is 0 in evaluation. Their share is the sparsity rate."""
        return self.source & (self.evaluated == 0)

    @property
    def partial(self) -> Tensor:
        """(B, S) bool: the real source positions whose gate is neither 0 nor 1 in evaluation."""
        return self.source & (self.evaluated > 0) & (self.evaluated < 1)


class GateListener(Protocol):
    def __call__(self, seen: GatesSeen) -> None: ...


class ExitRule(Protocol):
    """Decides at which decoder exit each row of a search stops at a new position."""

    @property
    def exits(self) -> Collection[int]:
        """The depths at which rows may stop before the last one."""

    def __call__(self, depth: int, states: Tensor, rows: Tensor) -> Tensor:
        """Return (N') bool: the rows that stop after ``depth`` steps.

        Args:
            states: (N', D) of the rows that still run, as `TranslationModel.decode` returns them for this exit.
            rows: (N') their numbers.
        """
        ...


class RecordedHead(Protocol):
    """A learned head of attention whose scores training reads."""

    def take(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return scores, with their gradient, weights, and the keys that are seen, of the last forward pass.

        (B, Q, K) each; None: there was no pass.
        """
        ...


class TranslationModel(Protocol):
    """A model as training sees it."""

    plan: DepthPlan
    operators: Operators

    def encode(self, source: Source, *, exits: Sequence[int] | None = None, compact: bool = False) -> Encoded:
        """Run the encoder once. ``exits``: depths whose memories are returned; default: the deepest trained one."""
        ...

    def decode(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        exits: Sequence[int] | None = None,
        valid: Tensor | None = None,
    ) -> dict[int, Tensor]:
        """tokens (B * R, T) -> {depth: hidden states (B * R, T, D)}; R hypotheses share a sentence of the memory.

        Padding on the right needs no mask, as attention is causal.

        Args:
            valid: (B * R, T), False at padding on the right, for which less is computed; None: all states are wanted.
        """
        ...

    def read_segment(
        self, tokens: Tensor, before: SegmentMemory | None = None, *, exits: Sequence[int] | None = None
    ) -> tuple[dict[int, Tensor], SegmentMemory]:
        """Run a language model on the next segment of every row's text, for training.

        Args:
            tokens: (B, T).
            before: the memory after the segments before; None: the text begins here.
            exits: default: the deepest trained one.

        Returns:
            {depth: hidden states (B, T, D)}, and the memory after the segment, without gradient.
        """
        ...

    def parameter_losses(self) -> dict[str, Tensor]:
        """Return the losses that depend on parameters alone, by name: scalars."""
        ...

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Return the least and largest values of bounded parameters, by name: training clamps them."""
        ...

    @property
    def output_table(self) -> nn.Parameter:
        """(V, D): the unpacked matrix of `project`. Training writes its gradient itself."""
        ...

    @property
    def output_bias(self) -> nn.Parameter | None:
        """(V): the bias of `project`, whose gradient training writes, too; `NEVER`: a token with probability 0."""
        ...

    def logged(self) -> dict[str, dict[SiteName, list[list[float]]]]:
        """Return what transforms give to the training log: name -> site -> a list for each step, of learned heads."""
        ...

    def head_names(self, site: SiteName) -> tuple[str, ...]:
        """Return the names of the heads of a site, in the order of their numbers (from 1).

        Fixed heads come first and have names of their own; the others are called ``learned``.
        """
        ...

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def train(self, mode: bool = True) -> object: ...
