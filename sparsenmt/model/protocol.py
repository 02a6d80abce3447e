"""A translation model as training, decoding and analysis see it.

Shapes: B sentences, R hypotheses a sentence, J hypotheses that are open, H heads, Q queries, K keys, S source
positions, T target positions, D model dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.memory import Memory
from sparsenmt.model.sites import SiteName
from sparsenmt.model.sockets import Gates, Keys


@dataclass(frozen=True)
class Source:
    """A batch of source sentences."""

    tokens: Tensor  # (B, S) piece ids, </s> last, padded
    valid: Tensor  # (B, S) bool, False at padding
    features: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B, S)


@dataclass(frozen=True)
class GateShares:
    """Of a sentence's source positions, by the gates of evaluation."""

    closed: Tensor  # (B,) share whose gate is 0
    partial: Tensor  # (B,) share whose gate is neither 0 nor 1


@dataclass(frozen=True)
class Decided:
    """What the filters on the way to an exit gave, each the mean over them."""

    losses: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B,)
    shares: Mapping[str, GateShares] = field(
        default_factory=dict
    )  # name of a loss -> what its filters do in evaluation


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
