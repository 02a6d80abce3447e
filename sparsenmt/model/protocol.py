"""A model as training, decoding and analysis see it.

Shapes: B sentences, R hypotheses a sentence, J hypotheses that are still open, H heads, Q queries, K keys, S source
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
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.sites import SiteName
from sparsenmt.model.sockets import ContentPattern, Gates, Keys
from sparsenmt.native.greedy import GreedyOutputs, TokenRules
from sparsenmt.native.token_lists import TokenLists

NEVER = -1e9
"""Output bias of a token whose probability is exactly 0."""


@dataclass(frozen=True)
class Source:
    """A batch of source sentences."""

    tokens: Tensor  # (B, S) token ids, </s> last, padded
    valid: Tensor  # (B, S) bool, False at padding
    features: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B, S)


@dataclass(frozen=True)
class GateShares:
    """Shares of a sentence's real source positions, by the gates in evaluation."""

    closed: Tensor  # (B,) of `GatesSeen.closed`
    partial: Tensor  # (B,) of `GatesSeen.partial`


@dataclass(frozen=True)
class Decided:
    """Losses and shares of the filters on the way to an exit, each the mean over the filters."""

    losses: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B,)
    shares: Mapping[str, GateShares] = field(default_factory=dict)  # name of a loss -> gates of its filters


@dataclass(frozen=True)
class Encoded:
    """The encoder's result for the requested exits: memories, and the filters' losses and shares."""

    memories: Mapping[int, Memory]  # encoder depth n -> memory
    decided: Mapping[int, Decided]

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


class DecoderCache(Protocol):
    """The KV cache of a search: self-attention keys and values of the positions so far, and those of the memory."""

    length: int
    """Positions so far."""

    @property
    def memory(self) -> Memory:
        """The memory of the sentences that are still searched."""
        ...

    def reorder(self, hypotheses: Tensor) -> None:
        """Keep these rows (of B * R), in this order, for the next step. hypotheses: (B' * R')."""
        ...

    def keep_sentences(self, sentences: Tensor) -> None:
        """Keep these sentences (of B) of the memory. sentences: (B',)."""
        ...

    @property
    def can_merge(self) -> bool:
        """True if a merged cache is decoded in one batch without loss of speed; decided when the cache is made."""
        ...

    def merge(self, others: Sequence[DecoderCache]) -> DecoderCache:
        """Merge with other caches, which must have as many hypotheses a sentence; sentences keep their order.

        Sentences may differ in length: the next positions of all are decoded together. What finished sentences and
        dropped hypotheses have left is not copied, so that merging with no others compacts a cache.
        """
        ...


class OutputProduct(Protocol):
    """A product with rows of the output table: the whole vocabulary V, or some of its tokens."""

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        ...

    def continuations(
        self, hidden: Tensor, scores: Tensor, never: Sequence[int], width: int, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """`decoding.scores.candidates` of hidden (B * J, D), without materialising all logits.

        None: not available here; use `project`.
        """
        ...


class TranslationModel(OutputProduct, Protocol):
    """A model as training, decoding and analysis see it."""

    plan: DepthPlan
    training: bool

    @property
    def compacts(self) -> bool:
        """True if a compacted memory may have fewer entries than the source has positions."""
        ...

    def encode(self, source: Source, *, exits: Sequence[int] | None = None, compact: bool = False) -> Encoded:
        """Run the encoder once. ``exits``: depths whose memories are returned; default: the deepest trained one."""
        ...

    def decode(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        cache: DecoderCache | None = None,
        exits: Sequence[int] | None = None,
        valid: Tensor | None = None,
    ) -> dict[int, Tensor]:
        """tokens (B * R, T) -> {depth: hidden states (B * R, T, D)}; R hypotheses share a sentence of the memory.

        With a cache, ``memory`` is the cache's, and the tokens follow those of earlier calls. Padding on the right
        needs no mask, as attention is causal.

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

    def no_source(self, rows: int) -> Memory:
        """Return the empty memory with which a language model decodes this many rows."""
        ...

    def parameter_losses(self) -> dict[str, Tensor]:
        """Return the losses that depend on parameters alone, by name: scalars."""
        ...

    def content_patterns(self) -> list[ContentPattern]:
        """Return the patterns that follow queries and keys in training."""
        ...

    def start_options(self) -> list[str]:
        """Return the names of the filters' options that give the values of untrained gates."""
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

    def listed_continuations(
        self, hidden: Tensor, lists: TokenLists, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """`continuations` among the tokens of each sentence's list. None: not available here; use `output_of`."""
        ...

    def greedy_outputs(
        self,
        cache: DecoderCache,
        lists: TokenLists,
        limits: Tensor,
        rules: TokenRules,
        *,
        exits: Sequence[int] | None = None,
    ) -> GreedyOutputs | None:
        """Search greedily among the tokens of each sentence's list, all steps in one call.

        None: not available here; go step by step.

        Args:
            cache: a new one, of as many sentences as there are lists.
            limits: (B) the most tokens of each output.
        """
        ...

    def output_of(self, tokens: Tensor) -> OutputProduct:
        """Gather the output's rows of some tokens for a search; in its results, tokens have the numbers 0, 1, 2 ..."""
        ...

    def new_cache(
        self, memory: Memory, *, exits: Sequence[int] | None = None, segment_memory: int | None = None
    ) -> DecoderCache:
        """Make the cache of a search.

        Args:
            exits: as those of its calls of `decode`.
            segment_memory: of a language model, another number of positions to keep than its own.
        """
        ...

    def release_buffers(self) -> None:
        """Release the memory that searches leave for the next one."""
        ...

    def listen(self, listener: AttentionListener) -> AbstractContextManager[None]:
        """While the context is open, every attention materialises its weights and passes them to the listener."""
        ...

    def listen_to_gates(self, listener: GateListener) -> AbstractContextManager[None]:
        """While the context is open, every memory filter's decision is passed to the listener."""
        ...

    def head_names(self, site: SiteName) -> tuple[str, ...]:
        """Names of the heads of a site, in the order of their numbers (from 1).

        Fixed heads come first and have names of their own; the others are called ``learned``.
        """
        ...

    def logged(self) -> dict[str, dict[SiteName, list[list[float]]]]:
        """Return what transforms give to the training log: name -> site -> a list for each step, of learned heads."""
        ...

    def disable_heads(self, site: SiteName, heads: Collection[int]) -> AbstractContextManager[None]:
        """While the context is open, the output of these heads (from 1) is zero, in every step and for listeners.

        Heads that the recipe disables stay disabled.

        Raises:
            ValueError: there is no such head.
        """
        ...

    @property
    def searches_at_once(self) -> int:
        """The number of searches that are best run side by side in this process (`decoding.side_by_side`)."""
        ...

    def packs(self, dtype: torch.dtype) -> bool:
        """Return True if this machine can decode in a dtype: floating ones, and int8 if there are such products."""
        ...

    def fastest_dtype(self) -> torch.dtype:
        """Measure which dtype to pack to for speed; fp32 unless another is clearly faster."""
        ...

    def pack(self, dtype: torch.dtype, *, final: bool = False) -> None:
        """Prepare for decoding: cast, fuse and pack the weights. Training is not possible afterwards.

        Where a CPU can round the inputs of matrix products, bf16 and int8 are dtypes of the products only, and all else
        stays in fp32. Otherwise bf16 is the dtype of everything except methods' parameters. ``final``: release the
        unpacked weights, so that weights are in memory once; a state cannot be loaded any more.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def train(self, mode: bool = True) -> object: ...

    def eval(self) -> object: ...
