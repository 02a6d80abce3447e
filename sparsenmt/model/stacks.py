"""The encoder and the decoder: steps that execute blocks, with exits.

A block is a set of weights; a step executes one. Blocks may be shared between steps, sockets never are.
Shapes: B sentences, R hypotheses a sentence, N = B * R rows, S source positions, T target positions, D model dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from sparsenmt.model.attention import AttentionStep, KeysValues, SlottedKeysValues, hide_padding
from sparsenmt.model.compaction import apply_gates
from sparsenmt.model.kv_cache import BufferPool, KVCache
from sparsenmt.model.layers import BlockOptions, SiteHeads, TransformerBlock
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import AttentionListener, Decided, ExitRule, GateListener, GateShares, GatesSeen
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.sites import SiteName
from sparsenmt.model.sockets import (
    ContentPattern,
    Gates,
    Keys,
    MemoryFilter,
    Pattern,
    Recurrence,
    ScoreTerm,
    Span,
    Transform,
)


@dataclass(frozen=True)
class SiteModules:
    """One attention site: its heads, its pattern, and how to make what a step has of its own.

    The makers are called with the number of learned heads, the step and its block.
    """

    heads: SiteHeads
    transform: Callable[[int, int, int], Transform]
    pattern: Pattern | None = None
    content: Callable[[int, int, int], ContentPattern] | None = None
    position: Callable[[int, int, int], ScoreTerm] | None = None
    span: Callable[[int, int, int], Span] | None = None

    def obstacle(self, transform: Transform) -> str | None:
        """The reason why dropped positions cannot be merged into a stand-in before this site (design rule 3)."""
        if self.pattern is not None or self.content is not None:
            return "a pattern"
        if self.heads.fixed is not None:
            return "fixed heads"
        if self.position is not None or self.span is not None:
            return "scores that depend on distances"
        return "a transform that depends on positions" if transform.position_dependent else None


class Steps(nn.ModuleList):
    """The sockets of a stack's execution steps; ``steps[t].self``, ``steps[t].cross``."""

    def __init__(
        self, sites: Mapping[str, tuple[SiteName, SiteModules]], plan: Sequence[int], listeners: list[AttentionListener]
    ):
        def make(name: SiteName, site: SiteModules, step: int) -> AttentionStep:
            learned = site.heads.count - (0 if site.heads.fixed is None else site.heads.fixed.heads)
            return AttentionStep(
                name,
                step,
                transform=site.transform(learned, step, plan[step]),
                pattern=site.pattern,
                content=None if site.content is None else site.content(learned, step, plan[step]),
                position=None if site.position is None else site.position(learned, step, plan[step]),
                span=None if site.span is None else site.span(learned, step, plan[step]),
                listeners=listeners,
                disabled=site.heads.disabled,
            )

        super().__init__(
            nn.ModuleDict({key: make(name, site, step) for key, (name, site) in sites.items()})
            for step in range(len(plan))
        )

    def at(self, step: int, key: str) -> AttentionStep:
        sockets = self[step]
        assert isinstance(sockets, nn.ModuleDict)
        found = sockets[key]
        assert isinstance(found, AttentionStep)
        return found


@dataclass
class Decisions:
    """The filters' losses and shares in one pass: by the name of a loss, a list of values (B,), one for each filter.

    Of a filter without a loss there are shares, by its own name. In training the memory is changed by sampled gates;
    the gates of evaluation are followed here, beside it.
    """

    source: Tensor  # (B, S) bool: the real source positions
    listeners: Sequence[GateListener] = ()
    losses: dict[str, list[Tensor]] = field(default_factory=dict)
    closed: dict[str, list[Tensor]] = field(default_factory=dict)
    partial: dict[str, list[Tensor]] = field(default_factory=dict)
    evaluated: Tensor | None = None  # (B, S) as `Memory.gates`, in evaluation
    masked: Tensor | None = None  # (B, S) bool: no key any more, in evaluation; None: only padding

    def add(
        self,
        memory: Memory,
        gates: Gates,
        *,
        depth: int,
        place: Literal["between", "output"],
        index: int,
        label: str = "",
    ) -> None:
        """Add the decision of the filter ``label`` on a memory, and pass it to the listeners."""
        masked = ~self.source if self.masked is None else self.masked
        evaluated = memory.on_source(gates.values if gates.evaluated is None else gates.evaluated).detach()
        evaluated = evaluated.masked_fill(masked, 0)
        if self.evaluated is not None and gates.cumulative:
            evaluated = evaluated.masked_fill(self.evaluated == 0, 0)
        if gates.on_closed == "mask":
            self.masked = masked | (evaluated == 0)
        if self.evaluated is not None and memory.gated:
            evaluated = evaluated * self.evaluated
        self.evaluated = evaluated
        seen = GatesSeen(depth, place, index, memory, gates, self.source, evaluated)
        lengths = self.source.sum(1).clamp_min(1)
        for name, value in gates.losses.items():
            self.losses.setdefault(name, []).append(value)
        for name in gates.losses or filter(None, [label]):
            self.closed.setdefault(name, []).append(seen.closed.sum(1) / lengths)
            self.partial.setdefault(name, []).append(seen.partial.sum(1) / lengths)
        for listener in self.listeners:
            listener(seen)

    def branch(self) -> Decisions:
        """Copy the decisions so far; the copy can be added to independently."""

        def copy(part: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
            return {name: list(each) for name, each in part.items()}

        return replace(self, losses=copy(self.losses), closed=copy(self.closed), partial=copy(self.partial))

    def means(self) -> Decided:
        """The mean of every value over the filters."""
        return Decided(
            {name: torch.stack(values).mean(0) for name, values in self.losses.items()},
            {
                name: GateShares(torch.stack(closed).mean(0), torch.stack(self.partial[name]).mean(0))
                for name, closed in self.closed.items()
            },
        )


def run_filters(
    filters: Sequence[MemoryFilter],
    memory: Memory,
    decisions: Decisions,
    *,
    depth: int,
    place: Literal["between", "output"],
    compact: bool,
) -> Memory:
    """Apply the filters in turn: decide, collect the decision, drop the entries that are closed."""
    for i, module in enumerate(filters):
        gates = module(memory)
        memory = memory if i + 1 < len(filters) else replace(memory, unnormed=None)  # nothing else reads them
        decisions.add(memory, gates, depth=depth, place=place, index=i, label=module.label)
        merge = compact and not any(later.position_dependent for later in filters[i + 1 :])
        memory = apply_gates(memory, gates, compact=merge)
    return memory


class Encoder(nn.Module):
    """A stack of self-attention blocks; empty in a language model."""

    def __init__(
        self, options: BlockOptions, plan: Sequence[int], site: SiteModules, listeners: list[AttentionListener]
    ) -> None:
        super().__init__()
        self.plan = tuple(plan)
        self.layers = nn.ModuleList(TransformerBlock(options, site.heads) for _ in set(plan))
        self.steps = Steps({"self": ("encoder_self", site)}, plan, listeners)
        self.norm = options.last_norm() if plan else nn.Identity()
        self.obstacle = site.obstacle(self.steps.at(0, "self").transform) if plan else None

    def run(self, memory: Memory, steps: range) -> Memory:
        """Execute some steps between which nothing happens."""
        return self.one_by_one(memory, steps)

    def one_by_one(self, memory: Memory, steps: range) -> Memory:
        """Execute some steps, one after the other."""
        for t in steps:
            memory = self.step(t, memory)
        return memory

    def step(self, t: int, memory: Memory) -> Memory:
        """Execute step ``t``."""
        block = self.layers[self.plan[t]]
        assert isinstance(block, TransformerBlock)
        keys = Keys(memory.valid, memory.positions, memory.positions, None, memory.counts, memory.features)
        q, kv = block.own.project_all(block.self_input(memory.states))
        states = block.add_self(memory.states, q, kv, hide_padding(keys), self.steps.at(t, "self"))
        rows = _real_rows(memory.valid) if self.training else None
        return replace(memory, states=block.add_feed_forward(states, rows), gated=False)


def memory_keys(memory: Memory, positions: Tensor) -> Keys:
    """The memory as keys of queries at ``positions`` (B * R, T), with the padding masked."""
    queries = positions.reshape(memory.valid.shape[0], -1)
    return hide_padding(Keys(memory.valid, queries, memory.positions, None, memory.counts, memory.features))


def _real_rows(valid: Tensor) -> Tensor | None:
    """valid (B, T) -> the numbers of the real rows among B * T; None: all are, or this would wait for a device."""
    return None if valid.device.type != "cpu" or bool(valid.all()) else valid.flatten().nonzero().squeeze(1)


class Decoder(nn.Module):
    """A stack of causal self-attention and cross-attention blocks.

    Args:
        own: self-attention; or a maker of the cells of recurrent layers in its place, one for each block.
        cross: None: a language model, whose blocks have self-attention only.
        segment_memory: most positions before a segment that a language model attends to; None: all.
    """

    def __init__(
        self,
        options: BlockOptions,
        plan: Sequence[int],
        own: SiteModules | Callable[[], Recurrence],
        cross: SiteModules | None,
        listeners: list[AttentionListener],
        segment_memory: int | None = None,
    ) -> None:
        super().__init__()
        self.plan = tuple(plan)
        read = None if cross is None else cross.heads
        self.layers = nn.ModuleList(
            TransformerBlock(options, own.heads if isinstance(own, SiteModules) else own(), read) for _ in set(plan)
        )
        sites: dict[str, tuple[SiteName, SiteModules]] = {}
        if isinstance(own, SiteModules):
            sites["self"] = ("decoder_self", own)
        if cross is not None:
            sites["cross"] = ("cross", cross)
        self.steps = Steps(sites, plan, listeners)
        self.norm = options.last_norm()
        self.obstacle = None if cross is None else cross.obstacle(self.steps.at(0, "cross").transform)
        self.reads_source = cross is not None
        # Transforms of a site have the same options: without a state their masks are the same in all steps.
        self._one_mask = cross is not None and not self.steps.at(0, "cross").transform.state_dict()
        self.is_recurrent = not isinstance(own, SiteModules)
        self._all_heads_reach = (
            isinstance(own, SiteModules) and own.heads.fixed is None
        )  # fixed ones may see everything
        self._segment_memory = segment_memory

    def forward(
        self,
        x: Tensor,
        memory: Memory,
        cache: KVCache | None,
        exits: Sequence[int],
        valid: Tensor | None = None,
        rule: ExitRule | None = None,
    ) -> dict[int, Tensor]:
        """x (B * R, T, D) embedded tokens -> {depth: (B * R, T, D)}; of rows that are not ``valid`` without meaning.

        rule: at a single new position with a cache, decides at which depth each row stops: see `_until`.
        """
        rows, length, _ = x.shape
        start = 0 if cache is None else cache.next_positions(rows)
        if cache is not None:
            cache.advance(rows, length)
        first = start if isinstance(start, int) else start[:, None]
        positions = (first + torch.arange(length, device=x.device)).expand(rows, -1)
        cross_keys = memory_keys(memory, positions) if self.reads_source else None
        # Also without a cache, a block that several steps execute projects the memory once.
        seen = KVCache(memory, stepwise=False) if cache is None else cache
        if rule is not None and cache is not None and length == 1:
            return {exits[0]: self._until(x, positions, cross_keys, cache, exits[0], rule)}
        result = {}
        real = None if valid is None else _real_rows(valid)
        known: dict[tuple[int, int], Keys] = {}
        for t in range(max(exits)):
            block = self.layers[self.plan[t]]
            assert isinstance(block, TransformerBlock)
            x = self._add_self(t, block, x, positions, cache, known)
            x = self._add_cross(t, block, x, cross_keys, seen)
            x = block.add_feed_forward(x, real)
            if t + 1 in exits:
                result[t + 1] = self.norm(x)
        return result

    def _until(
        self, x: Tensor, positions: Tensor, cross_keys: Keys | None, cache: KVCache, last: int, rule: ExitRule
    ) -> Tensor:
        """x (N, 1, D), one row a sentence -> (N, 1, D): each row after the depth at which the rule stops it.

        A row that has stopped keeps its state in the layers that it skips: their keys and values at this position, or
        their recurrent states, are made of it, and nothing else is computed ("Confident Adaptive Language Modeling",
        Schuster et al. 2022: the state of the exit is copied to all layers above).
        """
        known: dict[tuple[int, int], Keys] = {}
        going: Tensor | None = None  # numbers of the rows that still run; None: all
        for t in range(last):
            block = self.layers[self.plan[t]]
            assert isinstance(block, TransformerBlock)
            own = self._add_self(t, block, x, positions, cache, known, going)
            if going is not None and not len(going):
                continue
            own = block.add_feed_forward(self._add_cross(t, block, own, cross_keys, cache, going))
            x = own if going is None else x.index_copy(0, going, own)
            if t + 1 < last and t + 1 in rule.exits:
                rows = torch.arange(len(x), device=x.device) if going is None else going
                going = rows[~rule(t + 1, self.norm(own).squeeze(1), rows)]
        normed: Tensor = self.norm(x)
        return normed

    def _add_cross(
        self,
        t: int,
        block: TransformerBlock,
        x: Tensor,
        keys: Keys | None,
        cache: KVCache,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """x (N, T, D) plus cross-attention of step ``t``; ``chosen``: x are these rows only, one a sentence."""
        if block.cross is None or keys is None:
            return x
        step = self.steps.at(t, "cross")
        kv = cache.memory_keys_values(self.plan[t], block.cross.project_keys_values)
        mask = cache.memory_mask(0 if self._one_mask else t, partial(step.memory_mask, keys, kv.values.dtype))
        if chosen is not None:
            kv, keys, mask = kv.select(chosen), keys.select(chosen), mask and mask.select(chosen)
        return block.add_cross(x, kv, keys, step, mask)

    def read_segment(
        self, x: Tensor, before: SegmentMemory, exits: Sequence[int]
    ) -> tuple[dict[int, Tensor], SegmentMemory]:
        """x (B, T, D) the embedded tokens of a segment -> {depth: (B, T, D)}, and the memory after it.

        Keys and values of the positions in the memory are projected anew, with the present weights.
        """
        rows, length, _ = x.shape
        end = before.length + length
        keep = [self._kept_before(t, self._segment_memory) for t in range(len(self.plan))]
        inputs, result = [], {}
        for t in range(max(exits)):
            block = self.layers[self.plan[t]]
            assert isinstance(block, TransformerBlock)
            memory, most = before.states[t], keep[t]
            if block.recurrence is not None:
                x, state = block.add_recurrence(x, memory[:, -1] if memory.shape[1] else None)
                x = block.add_feed_forward(x)
                inputs.append(state[:, None])
                if t + 1 in exits:
                    result[t + 1] = self.norm(x)
                continue
            inputs.append(x)
            if most is not None:
                memory = memory[:, max(memory.shape[1] - most, 0) :]
            seen = block.self_input(torch.cat([memory, x], 1) if memory.shape[1] else x)
            q, kv = block.own.project_queries(seen[:, -length:]), block.own.project_keys_values(seen)
            positions = torch.arange(end - seen.shape[1], end, device=x.device).expand(rows, -1)
            keys = Keys((positions[:1] >= 0).expand(rows, -1), positions[:, -length:], positions)
            x = block.add_feed_forward(block.add_self(x, q, kv, keys, self.steps.at(t, "self")))
            if t + 1 in exits:
                result[t + 1] = self.norm(x)
        inputs += [x[:, :0]] * (len(self.plan) - len(inputs))
        return result, before.after(inputs, keep, length)

    def empty_segment_memory(self, like: Tensor) -> SegmentMemory:
        """The memory before a text; ``like`` (B, T, D)."""
        return SegmentMemory(tuple(like.new_empty(like.shape[0], 0, like.shape[2]) for _ in self.plan))

    def _kept_before(self, t: int, segment_memory: int | None) -> int | None:
        """Positions before new ones that step ``t`` can still attend to; None: all.

        Of a segment memory all are kept where the first ones of the text may be among them.
        """
        if self.is_recurrent:
            return segment_memory if segment_memory is None else min(segment_memory, 1)
        step = self.steps.at(t, "self")
        reach = step.reach if self._all_heads_reach and not (step.first and segment_memory) else None
        return min((most for most in (reach, segment_memory) if most is not None), default=None)

    def new_cache(
        self, memory: Memory, exits: Sequence[int], buffers: BufferPool | None, segment_memory: int | None = None
    ) -> KVCache:
        """Make the cache of a search that runs to these exits.

        segment_memory: another number of positions than that of the model. A language model without segment memory
            keeps all positions: the text is one segment.
        """
        kept = segment_memory if segment_memory is not None else self._segment_memory
        steps = range(len(self.plan))
        keep = [self._kept_before(t, kept or None) for t in steps]
        first = [0 if kept or not self._all_heads_reach else self.steps.at(t, "self").first for t in steps]
        return KVCache(memory, buffers=buffers, keep=keep, first=first)

    def _add_self(
        self,
        t: int,
        block: TransformerBlock,
        x: Tensor,
        positions: Tensor,
        cache: KVCache | None,
        known: dict[tuple[int, int], Keys],
        chosen: Tensor | None = None,
    ) -> Tensor:
        """x (N, T, D) plus self-attention, or the recurrence, of step ``t``.

        Args:
            known: the `Keys` of this pass, by the numbers of keys and of first ones that stand before the others.
            chosen: the rows that are returned; of the others only the cache is written. None: all.
        """
        if block.recurrence is not None:
            x, state = block.add_recurrence(x, None if cache is None else cache.states.get(t))
            if cache is not None:
                cache.states[t] = state
            return x if chosen is None else x.index_select(0, chosen)
        q, new = block.own.project_all(block.self_input(x))
        kv: KeysValues | SlottedKeysValues = new
        key = x.shape[1], 0
        if cache is not None:
            kv, begin = cache.append(t, new)
            key = kv.length, kv.first_length
        if key not in known:
            seen, starts = positions, None if cache is None else cache.row_starts(x.shape[0])
            count, first = key
            if cache is not None:
                seen = torch.arange(begin, begin + count - first, device=x.device).expand(x.shape[0], -1)
            if starts is not None:
                seen = seen - starts
            valid = seen >= first  # those that stand before the others are not among them
            written = None if cache is None else cache.written
            valid = valid if written is None else valid & written
            if first:
                ahead = torch.arange(first, device=x.device).expand(x.shape[0], -1)
                seen, valid = torch.cat([ahead, seen], 1), torch.cat([ahead >= 0, valid], 1)
            keys = Keys(valid, positions, seen)
            known[key] = keys if starts is None and written is None else hide_padding(keys)
        keys, step = known[key], self.steps.at(t, "self")
        if chosen is not None:
            x, q = x.index_select(0, chosen), None if q is None else q.index_select(0, chosen)
            kv, keys = kv.select(chosen), keys.select(chosen)
        return block.add_self(x, q, kv, keys, step)
