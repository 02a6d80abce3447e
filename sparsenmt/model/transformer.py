"""The Transformer (Vaswani et al. 2017) with its sockets: encoder and decoder, or a decoder alone as a language model.

One forward path: `encode`, `decode`, `project`. Training, forced scoring and search all use it; the cache is the only
difference between them.
Shapes: B sentences, R hypotheses a sentence, S source positions, T target positions, D model dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.model.attention import AttentionStep
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.dropout import dropout
from sparsenmt.model.embeddings import PositionKind, Positions, Wavelengths, add_positions
from sparsenmt.model.kv_cache import BufferPool, KVCache
from sparsenmt.model.layers import BlockOptions, FeedForward
from sparsenmt.model.linear import (
    CompiledProduct,
    Linear,
    ListedProduct,
    Packing,
    Product,
    can_hold_table,
    continues,
    fastest,
    packed_product,
    rounds,
)
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import AttentionListener, DecoderCache, Encoded, GateListener, Source
from sparsenmt.model.row_sums import look_up
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import WIDE, ContentPattern, MemoryFilter, Recurrence, Span
from sparsenmt.model.stacks import Decisions, Decoder, Encoder, SiteModules, run_filters
from sparsenmt.native.greedy import Embedding, GreedyOutputs, TokenRules
from sparsenmt.native.packing import PackedMatrix
from sparsenmt.native.token_lists import TokenLists
from sparsenmt.process.runtime import trim_heap

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
        self._dropout = options.residual_dropout
        self._listeners: list[AttentionListener] = []
        self._gate_listeners: list[GateListener] = []
        self._keys = table_keys(vocabulary.tie)
        sizes = dict(zip(self._keys, (vocabulary.source, vocabulary.target, vocabulary.target), strict=True))
        self.embeddings = nn.ParameterDict(
            {key: nn.Parameter(torch.empty(size, options.dimension)) for key, size in sizes.items()}
        )
        sides = ("source", "target")
        sinusoids: dict[str, Any] = {"wavelengths": positions.wavelengths, "first": positions.first}
        self.positions = nn.ModuleDict(
            {side: Positions(positions.kind, options.dimension, positions.maximum, **sinusoids) for side in sides}
        )
        self._scaled = embedding.scaled
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
        self._packed_output: Product | None = None
        self._rounded: torch.dtype | None = None  # of the packed output
        self._only_output: PackedMatrix | None = None  # holds the output table where the unpacked one was released
        self._listed_output: ListedProduct | None = None  # made when a search has lists
        self._buffer_pool = BufferPool()
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
    def compacts_output(self) -> bool:
        """True if dropping after the encoder saves time."""
        return self.obstacle("output") is None

    @property
    def compacts_between(self) -> bool:
        """True if dropping between encoder layers saves time."""
        return self.obstacle("between") is None

    @property
    def compacts(self) -> bool:
        def any_filter(place: nn.Module) -> bool:
            return any(isinstance(module, MemoryFilter) for module in place.modules())

        output, between = any_filter(self.memory.output), any_filter(self.memory.between)
        return (output and self.compacts_output) or (between and self.compacts_between)

    def _embed(self, tokens: Tensor, side: Literal["source", "target"], start: int | Tensor = 0) -> Tensor:
        positions = self.positions[side]
        assert isinstance(positions, Positions)
        vectors = self._rows(self._keys[0 if side == "source" else 1], tokens)
        embedded = add_positions(vectors, positions, start, scaled=self._scaled)
        if side in self.embedding_norm:
            embedded = self.embedding_norm[side](embedded)
        return dropout(embedded, self._dropout) if self.training else embedded

    def _rows(self, key: str, tokens: Tensor) -> Tensor:
        """tokens (...) -> (..., D): rows of a table, which may lie in the packed output only."""
        if self._only_output is not None and key == self._keys[2]:
            return self._only_output.rows(tokens)
        return look_up(tokens, self.embeddings[key])

    def encode(self, source: Source, *, exits: Sequence[int] | None = None, compact: bool = False) -> Encoded:
        wanted = tuple(exits) if exits is not None else self.plan.encoder_exits[-1:]
        states = self._embed(source.tokens, "source")
        positions = torch.arange(states.shape[1], device=states.device).expand(states.shape[0], -1)
        memory = Memory(states, source.valid, positions, None, source.features, source=source.valid)
        between = Decisions(source.valid, self._gate_listeners)
        memories, decided = {}, {}
        filtered = any(self.memory.after_step(t) for t in range(max(wanted) - 1))
        at_once = None if filtered else self.encoder.steps_at_once(min(wanted), memory)
        memory = memory if at_once is None else at_once
        for t in range(max(wanted)):
            depth = t + 1
            if at_once is None or depth > min(wanted):
                memory = self.encoder.step(t, memory)
            if depth in wanted:
                exit_memory, own = replace(memory, states=self.encoder.norm(memory.states)), between.branch()
                merge = compact and self.compacts_output
                memories[depth] = run_filters(
                    self.memory.at_exit(depth), exit_memory, own, depth=depth, place="output", compact=merge
                )
                decided[depth] = own.means()
            if depth < max(wanted) and (filters := self.memory.after_step(t)):
                merge = compact and self.compacts_between
                memory = run_filters(filters, memory, between, depth=depth, place="between", compact=merge)
        return Encoded(memories, decided)

    def decode(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        cache: DecoderCache | None = None,
        exits: Sequence[int] | None = None,
        valid: Tensor | None = None,
    ) -> dict[int, Tensor]:
        assert cache is None or isinstance(cache, KVCache)
        x = self._embed(tokens, "target", 0 if cache is None else cache.next_positions(tokens.shape[0]))
        wanted = tuple(exits) if exits is not None else self.plan.decoder_exits[-1:]
        hidden: dict[int, Tensor] = self.decoder(x, memory, cache, wanted, valid)
        return hidden

    def read_segment(
        self, tokens: Tensor, before: SegmentMemory | None = None, *, exits: Sequence[int] | None = None
    ) -> tuple[dict[int, Tensor], SegmentMemory]:
        x = self._embed(tokens, "target")
        wanted = tuple(exits) if exits is not None else self.plan.decoder_exits[-1:]
        memory = self.decoder.empty_segment_memory(x) if before is None else before
        found: tuple[dict[int, Tensor], SegmentMemory] = self.decoder.read_segment(x, memory, wanted)
        return found

    def no_source(self, rows: int) -> Memory:
        like = self._rows(self._keys[2], self.output_table.new_zeros(1, dtype=torch.long))
        nowhere = torch.empty(rows, 0, dtype=torch.long, device=like.device)
        states = like.new_empty(rows, 0, like.shape[1])
        return Memory(states, nowhere.bool(), nowhere)

    def parameter_losses(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for module in self.modules():
            for name, value in module.losses().items() if isinstance(module, Span) else ():
                found[name] = found[name] + value if name in found else value
        return found

    def content_patterns(self) -> list[ContentPattern]:
        return [module for module in self.modules() if isinstance(module, ContentPattern)]

    def start_options(self) -> list[str]:
        filters = [module for module in self.modules() if isinstance(module, MemoryFilter)]
        return sorted({each.start_option for each in filters if each.start_option is not None})

    def bounds(self) -> dict[str, tuple[float, float]]:
        return {
            f"{prefix}.{name}": limits
            for prefix, module in self.named_modules()
            if isinstance(module, Span)
            for name, limits in module.bounds().items()
        }

    @property
    def output_table(self) -> nn.Parameter:
        table: nn.Parameter = self.embeddings[self._keys[2]]
        return table

    def project(self, hidden: Tensor) -> Tensor:
        if self._packed_output is not None:
            return self._packed_output(hidden)
        return F.linear(hidden, self.embeddings[self._keys[2]], self.output_bias)

    def continuations(
        self, hidden: Tensor, scores: Tensor, never: Sequence[int], width: int, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        return _continuations(self._packed_output, hidden, scores, never, width, mask)

    def listed_continuations(
        self, hidden: Tensor, lists: TokenLists, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        if self._packed_output is None or scores.dtype != torch.float32:
            return None
        return self._listed().continuations(hidden, lists, scores, never, width)

    def _listed(self) -> ListedProduct:
        if self._listed_output is None:
            table: Tensor = self.output_table
            if self._only_output is not None:
                table = self._only_output.rows(torch.arange(self._only_output.outer))
            self._listed_output = ListedProduct.of(table, self.output_bias, self._rounded)
        return self._listed_output

    def greedy_outputs(
        self,
        cache: DecoderCache,
        lists: TokenLists,
        limits: Tensor,
        rules: TokenRules,
        *,
        exits: Sequence[int] | None = None,
    ) -> GreedyOutputs | None:
        assert isinstance(cache, KVCache)
        compiled, table = self.decoder.compiled, self.embeddings[self._keys[1]]
        suitable = self._packed_output is not None and table.dtype == torch.float32 and table.device.type == "cpu"
        if not suitable or compiled is None or "target" in self.embedding_norm:
            return None
        (depth,) = exits if exits is not None else self.plan.decoder_exits[-1:]
        output, positions = self._listed().table, self.positions["target"]
        if output is None:
            return None
        assert isinstance(positions, Positions)
        if self._only_output is not None and self._keys[1] == self._keys[2]:
            table = output.rows  # in fp32 the matrix itself
        encodings = positions(0, int(limits.max()), table)
        scale = table.shape[1] ** 0.5 if self._scaled else 1.0
        embedding = Embedding(table.detach(), encodings if encodings.dim() else None, scale)
        return compiled.greedy(cache, depth, embedding, (output, lists), limits, rules)

    def output_of(self, tokens: Tensor) -> OutputRows:
        weight = self._rows(self._keys[2], tokens).detach()
        bias = None if self.output_bias is None else self.output_bias.detach()[tokens]
        if self._packed_output is not None and (self._rounded is not None or continues(weight)):
            return OutputRows(packed_product(weight, bias, dtype=self._rounded, compiled=True))
        return OutputRows(partial(F.linear, weight=weight, bias=bias))  # reordering it would take longer

    def new_cache(
        self, memory: Memory, *, exits: Sequence[int] | None = None, segment_memory: int | None = None
    ) -> DecoderCache:
        wanted = tuple(exits) if exits is not None else self.plan.decoder_exits[-1:]
        cache: KVCache = self.decoder.new_cache(memory, wanted, self._buffer_pool, segment_memory)
        return cache

    @property
    def searches_at_once(self) -> int:
        observed = bool(self._listeners or self._gate_listeners)
        compiled = self.decoder.compiled is not None and not self.decoder.is_recurrent  # those are searched in one call
        return 2 if compiled and not observed and torch.get_num_threads() > 1 else 1

    def release_buffers(self) -> None:
        self._buffer_pool = BufferPool()  # a cache that still exists returns its buffers to the old one

    @contextmanager
    def listen(self, listener: AttentionListener) -> Iterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def listen_to_gates(self, listener: GateListener) -> Iterator[None]:
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

    def packs(self, dtype: torch.dtype) -> bool:
        floating = dtype in (torch.float32, torch.float64, torch.bfloat16)
        return floating or rounds(self.embeddings[self._keys[2]], dtype)

    def fastest_dtype(self) -> torch.dtype:
        weight = next(module for module in self.decoder.modules() if isinstance(module, FeedForward)).inner.weight
        if weight.device.type == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)
            return torch.bfloat16 if native else torch.float32
        return fastest(weight.detach().float(), [d for d in (torch.bfloat16, torch.int8) if rounds(weight, d)])

    def pack(self, dtype: torch.dtype, *, final: bool = False) -> None:
        self.eval().requires_grad_(False)
        output = self.embeddings[self._keys[2]]
        rounded = dtype if rounds(output, dtype) else None  # then only products are rounded
        keep = {id(p) for m in self.modules() if isinstance(m, WIDE) for p in m.parameters()}
        for parameter in self.parameters():
            if id(parameter) not in keep:  # methods compute in fp32: their parameters stay
                parameter.data = parameter.data.to(torch.float32 if rounded else dtype)
        how, self._rounded = Packing(rounded, final), rounded
        self.encoder.pack(how)
        self.decoder.pack(how)
        if final:
            trim_heap()  # before the largest matrix is packed
        one_copy = final and rounded is None and can_hold_table(output)
        compiled = one_copy or continues(output)
        self._packed_output = packed_product(output, self.output_bias, dtype=rounded, compiled=compiled)
        self._listed_output = None
        if one_copy and isinstance(self._packed_output, CompiledProduct):
            self._only_output = self._packed_output.packed
            output.data = output.data.new_empty(0)
        if final:
            trim_heap()


class OutputRows:
    """The product with some rows of the output table; implements `protocol.OutputProduct`."""

    def __init__(self, product: Product) -> None:
        self._product = product

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., U)."""
        return self._product(hidden)

    def continuations(
        self, hidden: Tensor, scores: Tensor, never: Sequence[int], width: int, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Implement `protocol.OutputProduct`."""
        return _continuations(self._product, hidden, scores, never, width, mask)


def _continuations(
    product: Product | None,
    hidden: Tensor,
    scores: Tensor,
    never: Sequence[int],
    width: int,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor] | None:
    if not isinstance(product, CompiledProduct) or scores.dtype != torch.float32:
        return None
    return product.continuations(hidden, scores, never, width, mask)


def table_keys(tie: Tie) -> tuple[str, str, str]:
    """Names of the tables that embed the source, embed the target, and project to the target vocabulary."""
    return {
        "all": ("shared", "shared", "shared"),
        "inputs": ("shared", "shared", "output"),
        "target": ("source", "target", "target"),
        "none": ("source", "target", "output"),
    }[tie]
