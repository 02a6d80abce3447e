"""The sockets of the engine as types: what a sparsity method implements, and what it is given.

Shapes: B sentences, H heads, G fixed heads, Q queries, K keys, S source positions, D model dimension, E head size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor, nn

from sparsenmt.model.memory import Memory


@dataclass(frozen=True)
class Keys:
    """What the queries of one attention may look at.

    Positions are absolute and count before any compaction; a stand-in for dropped positions has position -1.
    At cross-attention the hypotheses of a sentence lie on the query axis, so that Q is not time.
    """

    valid: Tensor  # (B, K) bool: real keys
    queries: Tensor  # (B, Q) absolute positions of the queries
    positions: Tensor  # (B, K) absolute positions of the keys
    allowed: Tensor | None = None  # bool, broadcastable to (B, H, Q, K): pattern, causality and padding together
    counts: Tensor | None = None  # (B, K) how many positions a key stands for; None: one each
    features: Mapping[str, Tensor] = field(default_factory=dict)  # uncompacted source features, indexed by positions

    def visible(self) -> Tensor:
        """Bool, broadcastable to (B, H, Q, K): the keys that a query really sees."""
        seen = self.valid[:, None, None, :] if self.allowed is None else self.allowed
        return seen if self.counts is None else seen & (self.counts > 0)[:, None, None, :]


@dataclass(frozen=True)
class Gates:
    """A filter's decision on a memory."""

    values: Tensor  # (B, S') in [0, 1]; exactly 0 means closed
    on_closed: Literal["zero", "mask"] = "zero"  # attend to a zero vector, or not at all
    losses: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B,), one value a sentence
    evaluated: Tensor | None = None  # (B, S') the gates of evaluation, where ``values`` are samples; None: the same


class Pattern(Protocol):
    """Which keys a query may see, as a function of positions only (and of what is visible at all).

    A site without a pattern (None) sees everything.
    """

    @property
    def reach(self) -> tuple[int, int] | None:
        """Keys farther left or right than this are never seen: the engine gathers bands. None: it only masks.

        With a reach, bands are cut closer by ``segment: int`` (a query sees nothing outside of its own of the segments
        of so many positions that begin at position 0) or ``stride: int`` (only keys at distances that are multiples).
        """

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """queries (B, Q), positions (B, K), visible (B, 1, Q or 1, K) -> bool, broadcastable to (B, H, Q, K)."""
        ...


class Transform(nn.Module):
    """Scores to attention mass. Scores come in at least fp32; the mass of a key includes its count."""

    position_dependent: bool = False
    """True if the result depends on positions: dropped positions then cannot be merged into one stand-in."""

    places: int | None = None  # softmax over so many largest scores, and all from 1e-5 (1 + |t|) below the last, t

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        """scores (B, H, Q, K) -> mass (B, H, Q, K); rows that see nothing are all zero."""
        raise NotImplementedError

    def score_bias(self, keys: Keys) -> Tensor | None:
        """For transforms that are "softmax after adding this bias": the bias, so that a fused kernel may be used.

        The bias is broadcastable to (B, H, Q, K), without what is not visible: the engine masks. Raises
        NotImplementedError where the transform is something else; None stands for a bias of zero.
        """
        raise NotImplementedError

    @property
    def fusable(self) -> bool:
        """Whether `score_bias` is implemented."""
        return type(self).score_bias is not Transform.score_bias


class FixedHeads(Protocol):
    """Heads whose weights are given, not learned: they have values, but no query and key projections."""

    heads: int  # G
    names: Sequence[str]  # what each of them does, for reports

    def __call__(self, values: Tensor, keys: Keys) -> Tensor:
        """values (B, G, K, E) -> context (B, G, Q, E), in O(length)."""
        ...

    def weights(self, keys: Keys) -> Tensor:
        """(B, G, Q, K): the same as a matrix, for reports and parity."""
        ...


class MemoryFilter(nn.Module):
    """Decides which encoder outputs go on. The engine drops."""

    requires: Collection[str] = frozenset()
    """Names of the source features that the filter reads."""

    position_dependent: bool = False
    """True if gates depend on positions or features: positions dropped before then cannot be merged into a stand-in."""

    def forward(self, memory: Memory) -> Gates:
        """Gates for the entries of ``memory``. Deterministic unless the module is in training mode.

        In decoding, states may come in lower precision than the filter's parameters, which stay in fp32.
        """
        raise NotImplementedError
