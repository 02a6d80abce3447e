"""The Transformer (Vaswani et al. 2017) with its sockets: encoder and decoder, or a decoder alone as a language model.

One forward path: `encode`, `decode`, `project`. Training, forced scoring and search all use it; the cache is the only
difference between them.
Shapes: B sentences, R hypotheses a sentence, S source positions, T target positions, D model dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.model.attention import AttentionStep
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.dropout import dropout
from sparsenmt.model.embeddings import PositionKind, Positions, Tables, Wavelengths, add_positions, keep_zero_start
from sparsenmt.model.kv_cache import BufferPool, KVCache
from sparsenmt.model.layers import BlockOptions
from sparsenmt.model.linear import Linear
from sparsenmt.model.memory import Memory
from sparsenmt.model.operators import PYTORCH, Operators
from sparsenmt.model.protocol import AttentionListener, Decided, Encoded, ExitRule, GateListener, Source
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import MemoryFilter, Recurrence, Span
from sparsenmt.model.stacks import Decisions, Decoder, Encoder, SiteModules, run_filters

Tie = Literal["all", "inputs", "target", "none"]


@dataclass(frozen=True)
class Vocabulary:
    """Sizes of the vocabularies, which embeddings and projections share a table, and if the output has a bias."""

    source: int
    target: int
    tie: Tie
    output_bias: bool = False


@dataclass(frozen=True)
class PositionOptions:
    """Kind of position encodings, and the longest sequence.

    Args:
        segment_memory: positions before a segment of text that a language model attends to.
        wavelengths, first: of sinusoids, as for `Positions`.
    """

    kind: PositionKind
    maximum: int
    segment_memory: int = 0
    wavelengths: Wavelengths = "tensor2tensor"
    first: int = 0


@dataclass(frozen=True)
class EmbeddingOptions:
    """The treatment of embeddings: multiplied by sqrt(D), and normalised after positions were added."""

    scaled: bool = True
    normed: bool = False


def own_exit(exits: Sequence[int], depth: int) -> int:
    """Return the exit whose filters a depth uses: itself, or the next deeper exit.

    exits: sorted.
    """
    return next((n for n in exits if n >= depth), exits[-1])


class MemoryFilters(nn.Module):
    """Memory filters by place.

    Names on disk are ``memory.output.0.*`` (``memory.output.0.<exit>.*`` where each exit has its own filters) and
    ``memory.between.<step>.0.*``.
    """

    def __init__(
        self,
        output: Sequence[MemoryFilter | Mapping[int, MemoryFilter]],
        between: Sequence[Sequence[MemoryFilter]],
    ) -> None:
        super().__init__()
        self.output = nn.ModuleList(
            each if isinstance(each, MemoryFilter) else nn.ModuleDict({str(n): own for n, own in each.items()})
            for each in output
        )
        self.between = nn.ModuleList(nn.ModuleList(filters) for filters in between)

    def at_exit(self, depth: int) -> list[MemoryFilter]:
        """Filters of an exit, in order; those of the next deeper exit if it has none of its own."""
        found = []
        for each in self.output:
            if isinstance(each, nn.ModuleDict):
                each = each[str(own_exit(sorted(map(int, each)), depth))]
            assert isinstance(each, MemoryFilter)
            found.append(each)
        return found

    def after_step(self, step: int) -> list[MemoryFilter]:
        """Filters between a step and the next, in order."""
        if step >= len(self.between):
            return []
        filters = self.between[step]
        assert isinstance(filters, nn.ModuleList)
        return [each for each in filters if isinstance(each, MemoryFilter)]


class Transformer(nn.Module):
    """The model; implements `protocol.TranslationModel`.

    Args:
        options: of all blocks.
        vocabulary: sizes and sharing of the tables.
        positions: position encodings.
        plan: which blocks run at which steps, and the exits; of a language model, without encoder steps.
        sites: the attention sites ``encoder_self``, ``decoder_self``, ``cross``.
        embedding: the treatment of embeddings.
        decoder_feed_forward: inner dimension of the decoder's feed-forward networks; None: that of ``options``.
        output: filters after the encoder, each for all exits or by exit.
        between: filters after each step but the last; empty: none.
        recurrence: makes the cells of recurrent layers in the place of the decoder's self-attention; None: there are
            none.
    """

    operators: Operators = PYTORCH

    def __init__(
        self,
        options: BlockOptions,
        vocabulary: Vocabulary,
        positions: PositionOptions,
        plan: DepthPlan,
        sites: tuple[SiteModules, SiteModules, SiteModules],
        *,
        embedding: EmbeddingOptions = EmbeddingOptions(),
        decoder_feed_forward: int | None = None,
        output: Sequence[MemoryFilter | Mapping[int, MemoryFilter]] = (),
        between: Sequence[Sequence[MemoryFilter]] = (),
        recurrence: Callable[[], Recurrence] | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.dropout = options.residual_dropout
        self._listeners: list[AttentionListener] = []
        self._gate_listeners: list[GateListener] = []
        self.table_keys = table_keys(vocabulary.tie)
        sizes = dict(zip(self.table_keys, (vocabulary.source, vocabulary.target, vocabulary.target), strict=True))
        self.embeddings = Tables(
            {key: nn.Parameter(torch.empty(size, options.dimension)) for key, size in sizes.items()}
        )
        sides = ("source", "target")
        sinusoids: dict[str, Any] = {"wavelengths": positions.wavelengths, "first": positions.first}
        self.positions = nn.ModuleDict(
            {side: Positions(positions.kind, options.dimension, positions.maximum, **sinusoids) for side in sides}
        )
        self.scaled = embedding.scaled
        normed = (sides if plan.encoder else sides[1:]) if embedding.normed else ()
        self.embedding_norm = nn.ModuleDict({side: options.layer_norm() for side in normed})
        self.output_bias = nn.Parameter(torch.empty(vocabulary.target)) if vocabulary.output_bias else None
        own_encoder, own_decoder, cross = sites
        absent: tuple[str, ...] = () if plan.encoder else ("encoder_self", "cross")
        absent += () if recurrence is None else ("decoder_self",)
        self._head_names = {
            name: () if name in absent else site.heads.names for name, site in zip(SITES, sites, strict=True)
        }
        self.encoder = Encoder(options, plan.encoder, own_encoder, self._listeners)
        read, memory = (cross, None) if plan.encoder else (None, positions.segment_memory)
        decoder = replace(options, feed_forward=decoder_feed_forward or options.feed_forward)
        self.decoder = Decoder(decoder, plan.decoder, recurrence or own_decoder, read, self._listeners, memory)
        self.memory = MemoryFilters(output, between)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform matrices, zero biases, embeddings N(0, 1/D). Methods initialise their own parameters."""
        for table in self.embeddings.values():
            nn.init.normal_(table, std=table.shape[1] ** -0.5)
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)
        for block in (*self.encoder.layers, *self.decoder.layers):
            for module in block.modules():
                if isinstance(module, Linear):
                    nn.init.xavier_uniform_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)

    def obstacle(self, place: Literal["output", "between"]) -> str | None:
        """The reason why positions dropped at a place are zeroed, which saves no time; None: they are compacted.

        Compaction must be exact (design rule 3). A memory between encoder layers is read by the encoder, the decoder
        and later filters.
        """
        found = None if self.decoder.obstacle is None else f"cross-attention has {self.decoder.obstacle}"
        if place == "output":
            return found
        if self.encoder.obstacle is not None:
            return f"the encoder's self-attention has {self.encoder.obstacle}"
        filters = [module for module in self.memory.modules() if isinstance(module, MemoryFilter)]
        if found is None and any(f.position_dependent for f in filters):
            return "a filter decides by position or feature"
        return found

    @property
    def compacts(self) -> bool:
        """True if a compacted memory may have fewer entries than the source has positions."""
        places: tuple[Literal["output", "between"], ...] = ("output", "between")
        filtered = [p for p in places if any(isinstance(m, MemoryFilter) for m in getattr(self.memory, p).modules())]
        return any(self.obstacle(place) is None for place in filtered)

    def _embed(
        self, tokens: Tensor, side: Literal["source", "target"], start: int | Tensor = 0, bound: int | None = None
    ) -> Tensor:
        positions = self.positions[side]
        assert isinstance(positions, Positions)
        vectors = self.embeddings.rows(self.table_keys[0 if side == "source" else 1], tokens)
        if self.training and side == "target" and self.output_bias is not None:  # as all models from Marian have it
            vectors = keep_zero_start(vectors)
        embedded = add_positions(vectors, positions, start, scaled=self.scaled, bound=bound)
        if side in self.embedding_norm:
            embedded = self.embedding_norm[side](embedded)
        return dropout(embedded, self.dropout, self.operators.drop) if self.training else embedded

    def encode(self, source: Source, *, exits: Sequence[int] | None = None, compact: bool = False) -> Encoded:
        if not self.plan.encoder:
            return Encoded(
                {0: Memory(self._embed(source.tokens, "target"), source.valid, source.tokens)}, {0: Decided()}
            )
        wanted = tuple(exits) if exits is not None else self.plan.encoder_exits[-1:]
        states = self._embed(source.tokens, "source")
        positions = torch.arange(states.shape[1], device=states.device).expand(states.shape[0], -1)
        memory = Memory(states, source.valid, positions, None, source.features, source=source.valid)
        between = Decisions(source.valid, self._gate_listeners)
        memories, decided = {}, {}
        done, stops = 0, {depth for depth in range(1, max(wanted)) if self.memory.after_step(depth - 1)}
        for depth in sorted(stops.union(wanted)):
            steps, done = range(done, depth), depth
            memory = self.encoder.run(memory, steps) if not stops else self.encoder.one_by_one(memory, steps)
            if depth in wanted:
                filters, own = self.memory.at_exit(depth), between.branch()
                unnormed = memory.states if filters else None
                exit_memory = replace(memory, states=self.encoder.norm(memory.states), unnormed=unnormed)
                merge = compact and self.obstacle("output") is None
                memories[depth] = run_filters(filters, exit_memory, own, depth=depth, place="output", compact=merge)
                decided[depth] = own.means()
            if depth in stops:
                merge = compact and self.obstacle("between") is None
                filters = self.memory.after_step(depth - 1)
                memory = run_filters(filters, memory, between, depth=depth, place="between", compact=merge)
        return Encoded(memories, decided)

    def decode(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        cache: KVCache | None = None,
        exits: Sequence[int] | None = None,
        valid: Tensor | None = None,
        rule: ExitRule | None = None,
    ) -> dict[int, Tensor]:
        start, bound = (0, None) if cache is None else (cache.next_positions(tokens.shape[0]), cache.position_bound)
        x = self._embed(tokens, "target", start, bound)
        wanted = tuple(exits) if exits is not None else self.plan.decoder_exits[-1:]
        hidden: dict[int, Tensor] = self.decoder(x, memory, cache, wanted, valid, rule)
        return hidden

    def read_segment(
        self, tokens: Tensor, before: SegmentMemory | None = None, *, exits: Sequence[int] | None = None
    ) -> tuple[dict[int, Tensor], SegmentMemory]:
        x = self._embed(tokens, "target")
        wanted = tuple(exits) if exits is not None else self.plan.decoder_exits[-1:]
        memory = self.decoder.empty_segment_memory(x) if before is None else before
        found: tuple[dict[int, Tensor], SegmentMemory] = self.decoder.read_segment(x, memory, wanted)
        return found

    def parameter_losses(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for module in self.modules():
            for name, value in module.losses().items() if isinstance(module, Span) else ():
                found[name] = found[name] + value if name in found else value
        return found

    def bounds(self) -> dict[str, tuple[float, float]]:
        return {
            f"{prefix}.{name}": limits
            for prefix, module in self.named_modules()
            if isinstance(module, Span)
            for name, limits in module.bounds().items()
        }

    @property
    def output_table(self) -> nn.Parameter:
        table: nn.Parameter = self.embeddings[self.table_keys[2]]
        return table

    def project(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embeddings[self.table_keys[2]], self.output_bias)

    def new_cache(
        self,
        memory: Memory,
        *,
        exits: Sequence[int] | None = None,
        segment_memory: int | None = None,
        buffers: BufferPool | None = None,
    ) -> KVCache:
        """Make the cache of a search.

        Args:
            exits: as those of its calls of `decode`.
            segment_memory: of a language model, another number of positions to keep than its own.
            buffers: the pool of its buffers; None: it has its own.
        """
        wanted = tuple(exits) if exits is not None else self.plan.decoder_exits[-1:]
        cache: KVCache = self.decoder.new_cache(memory, wanted, buffers, segment_memory)
        return cache

    @property
    def observed(self) -> bool:
        """True while it has listeners."""
        return bool(self._listeners or self._gate_listeners)

    @contextmanager
    def listen(self, listener: AttentionListener) -> Iterator[None]:
        """While the context is open, every attention materialises its weights and passes them to the listener."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def listen_to_gates(self, listener: GateListener) -> Iterator[None]:
        """While the context is open, every memory filter's decision is passed to the listener."""
        self._gate_listeners.append(listener)
        try:
            yield
        finally:
            self._gate_listeners.remove(listener)

    def head_names(self, site: SiteName) -> tuple[str, ...]:
        return self._head_names[site]

    @torch.no_grad()
    def logged(self) -> dict[str, dict[SiteName, list[list[float]]]]:
        found: dict[str, dict[SiteName, list[list[float]]]] = {}
        for step in self.modules():
            if isinstance(step, AttentionStep):
                values_of = dict(step.transform.logged()) | ({} if step.span is None else dict(step.span.logged()))
                for name, values in values_of.items():
                    found.setdefault(name, {}).setdefault(step.site, []).append(values.double().tolist())
        return found

    @contextmanager
    def disable_heads(self, site: SiteName, heads: Collection[int]) -> Iterator[None]:
        """While the context is open, the output of these heads (from 1) is zero, in every step and for listeners.

        Heads that the recipe disables stay disabled.

        Raises:
            ValueError: there is no such head.
        """
        count = len(self._head_names[site])
        if any(not 1 <= head <= count for head in heads):
            raise ValueError(f"{site} has the heads 1 to {count}, not {sorted(heads)}")
        steps = [step for step in self.modules() if isinstance(step, AttentionStep) and step.site == site]
        before = [step.disabled for step in steps]
        for step in steps:
            step.disabled = step.disabled.union(heads)
        try:
            yield
        finally:
            for step, disabled in zip(steps, before, strict=True):
                step.disabled = disabled


def table_keys(tie: Tie) -> tuple[str, str, str]:
    """Names of the tables that embed the source, embed the target, and project to the target vocabulary."""
    return {
        "all": ("shared", "shared", "shared"),
        "inputs": ("shared", "shared", "output"),
        "target": ("source", "target", "target"),
        "none": ("source", "target", "output"),
    }[tie]
