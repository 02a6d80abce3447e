"""The sockets of the engine as types, and the model as the rest of the program sees it.

Shapes: B sentences, R hypotheses a sentence, H heads, G given heads, Q queries, K keys, S source positions,
T target positions, D model dimension, E head size, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from sparsenmt.model.memory import Memory as Memory


@dataclass(frozen=True)
class Source:
    """A batch of source sentences."""

    tokens: Tensor  # (B, S) piece ids, </s> last, padded
    valid: Tensor  # (B, S) bool, False at padding
    features: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B, S)


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


@dataclass(frozen=True)
class Shares:
    """Of a sentence's source positions, by the gates of evaluation."""

    closed: Tensor  # (B,) share whose gate is 0
    partial: Tensor  # (B,) share whose gate is neither 0 nor 1


@dataclass(frozen=True)
class Decided:
    """What the filters on the way to an exit gave, each the mean over them."""

    losses: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B,)
    shares: Mapping[str, Shares] = field(default_factory=dict)  # name of a loss -> what its filters do in evaluation


@dataclass(frozen=True)
class Encoded:
    """The encoder's result, for every exit asked for: a memory, and what filters decided."""

    memories: Mapping[int, Memory]  # encoder depth n -> memory
    decided: Mapping[int, Decided]

    @property
    def losses(self) -> dict[str, Tensor]:
        """Name -> (B,): the mean over the exits; one that no filter stands before counts as 0."""
        found: dict[str, list[Tensor]] = {}
        for decided in self.decided.values():
            for name, values in decided.losses.items():
                found.setdefault(name, []).append(values)
        return {name: torch.stack(each).sum(0) / len(self.decided) for name, each in found.items()}


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


class GivenHeads(Protocol):
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


@dataclass(frozen=True)
class DepthPlan:
    """Which block runs at which step, and which exits are trained.

    ``encoder[t]`` is the index of the block that step t executes; exits count steps from 1.
    """

    encoder: tuple[int, ...]
    decoder: tuple[int, ...]
    encoder_exits: tuple[int, ...]
    decoder_exits: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...] | None = None
    """Of the loss at each pair of exits, a row for each encoder exit; they need not sum to 1. None: all the same."""
    drawn: tuple[int | None, int | None] = (None, None)
    """How many exits of the encoder, and of the decoder, an update trains, drawn anew for each; None: all."""

    def __post_init__(self) -> None:
        for side, drawn in zip(("encoder", "decoder"), self.drawn, strict=True):
            steps, exits = getattr(self, side), getattr(self, f"{side}_exits")
            if not steps or sorted(set(steps)) != list(range(max(steps) + 1)):
                raise ValueError(f"{side}: blocks must be numbered from 0 without gaps, not {steps}")
            if list(exits) != sorted(set(exits)) or not exits or exits[0] < 1 or exits[-1] > len(steps):
                raise ValueError(f"{side}: exits must rise within 1..{len(steps)}, not {exits}")
            if drawn is not None and not 1 <= drawn <= len(exits):
                raise ValueError(f"{side}: {drawn} exits cannot be drawn of {len(exits)}")
        if self.weights is not None:
            self._check_weights(self.weights)

    def _check_weights(self, rows: tuple[tuple[float, ...], ...]) -> None:
        shape = len(self.encoder_exits), len(self.decoder_exits)
        if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
            raise ValueError(f"the exits take {shape[0]} rows of {shape[1]} weights")
        if any(not 0 <= weight < math.inf for row in rows for weight in row):
            raise ValueError("weights of exits must be at least 0, and finite")
        if not all(map(any, rows)) or not all(map(any, zip(*rows, strict=True))):
            raise ValueError("an exit all of whose weights are 0 is none")
        if None not in self.drawn and not all(map(all, rows)):
            raise ValueError("where exits of both sides are drawn, no pair may have the weight 0")

    @property
    def deepest(self) -> tuple[int, int]:
        """The deepest exits: where a model runs to unless told otherwise."""
        return self.encoder_exits[-1], self.decoder_exits[-1]

    def pairs(self) -> dict[tuple[int, int], float]:
        """The share of every trained pair of exits in the loss; they sum to 1."""
        rows = self.weights or ((1.0,) * len(self.decoder_exits),) * len(self.encoder_exits)
        total = math.fsum(itertools.chain.from_iterable(rows))
        exits = itertools.product(self.encoder_exits, self.decoder_exits)
        found = zip(exits, itertools.chain.from_iterable(rows), strict=True)
        return {pair: weight / total for pair, weight in found if weight}


class DepthPolicy(Protocol):
    """A method of the depth socket."""

    def __call__(self, encoder_layers: int, decoder_layers: int) -> DepthPlan: ...


SiteName = Literal["encoder_self", "decoder_self", "cross"]
SITES: tuple[SiteName, ...] = ("encoder_self", "decoder_self", "cross")


@dataclass(frozen=True)
class AttentionSeen:
    """What a listener is told of one attention: weights of given heads first, then of learned heads."""

    site: SiteName
    step: int
    weights: Tensor  # (B, H, Q, K)
    keys: Keys


class AttentionListener(Protocol):
    def __call__(self, seen: AttentionSeen) -> None: ...


@dataclass(frozen=True)
class GatesSeen:
    """What a listener is told of one memory filter: what it was given, and what it decided."""

    depth: int  # encoder steps executed before it
    place: Literal["between", "output"]
    index: int  # among the filters of its place
    memory: Memory
    gates: Gates


class GateListener(Protocol):
    def __call__(self, seen: GatesSeen) -> None: ...


class DecoderCache(Protocol):
    """Keys and values of what is decoded already, and of the memory."""

    length: int
    """Positions decoded so far."""

    @property
    def memory(self) -> Memory:
        """The memory of the sentences that are still there."""
        ...

    def reorder(self, hypotheses: Tensor) -> None:
        """Keep these rows (of B * R), in this order, for the next step. hypotheses: (B' * R')."""
        ...

    def keep_sentences(self, sentences: Tensor) -> None:
        """Keep these sentences (of B) of the memory. sentences: (B',)."""
        ...

    @property
    def joins(self) -> bool:
        """Whether `join` is for it, as it is now."""
        ...

    def join(self, others: Sequence[DecoderCache]) -> DecoderCache:
        """A cache of what this one and others have left, in order; they must have as many hypotheses a sentence.

        The next positions of all sentences are decoded together, wherever each of them is. Memory that sentences and
        hypotheses which are gone have left is not taken along, also where there are no others.
        """
        ...


class TranslationModel(Protocol):
    """A model as training, decoding and analysis see it."""

    plan: DepthPlan
    training: bool

    @property
    def compacts(self) -> bool:
        """Whether a compacted memory may have fewer entries than the source has positions."""
        ...

    def encode(self, source: Source, *, exits: Sequence[int] | None = None, compact: bool = False) -> Encoded:
        """Run the encoder once. ``exits``: depths whose memories are wanted; default the deepest trained one."""
        ...

    def decode(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        cache: DecoderCache | None = None,
        exits: Sequence[int] | None = None,
    ) -> dict[int, Tensor]:
        """tokens (B * R, T) -> {depth: hidden states (B * R, T, D)}; R hypotheses share a sentence of the memory.

        With a cache, ``memory`` is the cache's own and the tokens follow those that it has seen. Padding needs no
        mask, as it lies to the right of what it must not disturb.
        """
        ...

    @property
    def output_table(self) -> nn.Parameter:
        """(V, D): what `project` multiplies with, where nothing is packed. Training writes its gradient itself."""
        ...

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        ...

    def continuations(
        self, hidden: Tensor, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """`decoding.scores.candidates` of hidden (B * J, D), without all logits at once; None: it takes `project`."""
        ...

    def new_cache(self, memory: Memory) -> DecoderCache: ...

    def listen(self, listener: AttentionListener) -> AbstractContextManager[None]:
        """While the context is open, every attention materialises its weights and tells the listener."""
        ...

    def listen_to_gates(self, listener: GateListener) -> AbstractContextManager[None]:
        """While the context is open, every memory filter's decision is told to the listener."""
        ...

    def head_names(self, site: SiteName) -> tuple[str, ...]:
        """What the heads of a site are, in the order of their numbers, which count from 1.

        Given heads come first and have names of their own; the others are ``learned``.
        """
        ...

    def disable_heads(self, site: SiteName, heads: Collection[int]) -> AbstractContextManager[None]:
        """While the context is open, these heads (from 1) give zeros, in every step; also in what listeners are told.

        Heads that the recipe has disabled stay so. Raises ValueError if there is no such head.
        """
        ...

    def packs(self, dtype: torch.dtype) -> bool:
        """Whether this machine can decode in it: all floating dtypes, and int8 where there are such products."""
        ...

    def fastest_dtype(self) -> torch.dtype:
        """What to pack to for speed, by a measurement here and now; fp32 unless another is clearly faster."""
        ...

    def pack(self, dtype: torch.dtype, *, final: bool = False) -> None:
        """Prepare for decoding: cast, fuse and pack the weights. Training is not possible afterwards.

        bf16 and int8 are dtypes of the matrix products where a CPU can round their inputs on the way: all else stays in
        fp32. Otherwise bf16 is the dtype of everything, methods' parameters excepted. ``final``: give up the weights
        that were packed, so that they are not in memory twice; others cannot be loaded any more.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def train(self, mode: bool = True) -> object: ...

    def eval(self) -> object: ...
