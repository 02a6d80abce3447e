"""Equalities between the ways in which a case can be computed. All in float64 to 1e-9 unless told otherwise.

Each raises `BrokenRule`. Those of single calls are in `properties`.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from sparsenmt.engine.build import build, packed
from sparsenmt.engine.contract import Engine, NextRules
from sparsenmt.model import attend, attention
from sparsenmt.model.attention import MultiHeadAttention
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.model.sockets import Keys
from sparsenmt.testing.bench import Bench, attention_steps, decides

EXACT = 1e-9
SINGLE = 2e-4  # fp32, absolute, for hidden states of about unit size
_SWITCH = "SPARSENMT_NATIVE"
STEPS = (1, 1, 1, 4, 1, 2)  # tokens that are decoded at once; the last number repeats


class BrokenRule(AssertionError):
    """A rule of methods does not hold in a case."""


def require(condition: bool, message: str) -> None:
    """Raise `BrokenRule` unless a condition holds; an assertion would vanish under ``python -O``."""
    if not condition:
        raise BrokenRule(message)


def assert_same(
    found: Mapping[Any, Tensor], expected: Mapping[Any, Tensor], what: str, tolerance: float = EXACT
) -> None:
    """Raise unless tensors of the same names and shapes are finite, and differ by a tolerance at most."""
    require(found.keys() == expected.keys(), what)
    for key, value in found.items():
        shapes = tuple(value.shape), tuple(expected[key].shape)
        require(shapes[0] == shapes[1], f"{what}: {key}: shapes {shapes[0]} and {shapes[1]}")
        require(bool(value.isfinite().all()), f"{what}: {key} is not finite")
        difference = float((value - expected[key]).abs().max()) if value.numel() else 0.0
        require(difference <= tolerance, f"{what}: {key} differs by {difference:.1e}")


def in_steps(bench: Bench, memory: Memory) -> dict[int, Tensor]:
    """Decode with a cache, a few tokens at a time."""
    cache = bench.model.new_cache(memory)
    exits = bench.model.plan.decoder_exits
    parts: list[dict[int, Tensor]] = []
    sizes = list(STEPS)
    while cache.length < bench.target.shape[1]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        tokens = bench.target[:, cache.length : cache.length + size]
        parts.append(bench.model.decode(tokens, cache.memory, cache=cache, exits=exits))
    return {m: torch.cat([part[m] for part in parts], 1) for m in exits}


def check_steps(bench: Bench, tolerance: float = EXACT) -> None:
    """Step by step = at once, on dense and on compacted memories."""
    for compact in (False, True):
        for n, memory in bench.encode(compact=compact).memories.items():
            what = f"step by step = at once, encoder exit {n}, compact={compact}"
            assert_same(in_steps(bench, memory), bench.decode(memory), what, tolerance)


def check_truncation(bench: Bench) -> None:
    """Positions that are removed from a cache again, of each sentence another number, leave no trace."""
    model, memories = bench.model, bench.encode(compact=True).memories
    memory = memories[max(memories)]
    depth, first = model.plan.decoder_exits[-1:], slice(0, None, bench.hypotheses)
    target = bench.target[first]
    cache, counts = model.new_cache(memory, exits=depth), [1 + row % 3 for row in range(len(target))]
    cache.allow_truncation(3)
    model.decode(target[:, :1], memory, cache=cache, exits=depth)
    if cache.states or target.shape[1] < 6:  # states of recurrent layers cannot be removed
        return
    for column in (1, 2):  # single positions, all of which are removed
        model.decode(target[:, column : column + 1].flip(0), memory, cache=cache, exits=depth)
    cache.truncate(2)
    model.decode(target[:, 1:4], memory, cache=cache, exits=depth)
    cache.truncate_rows(counts)
    more = torch.stack([row[4 - count : 6 - count] for row, count in zip(target, counts, strict=True)])
    found = [model.decode(more[:, [column]], memory, cache=cache, exits=depth)[depth[0]] for column in (0, 1)]
    whole = model.decode(target, memory, exits=depth)[depth[0]]
    expected = torch.stack([row[4 - count : 6 - count] for row, count in zip(whole, counts, strict=True)])
    assert_same({depth[0]: torch.cat(found, 1)}, {depth[0]: expected}, "a cache without what was removed")


def check_compaction(bench: Bench, tolerance: float = EXACT) -> None:
    """Dense = compacted, in outputs, losses and gates; and it is really compacted where the model says so."""
    dense, compacted = bench.encode(), bench.encode(compact=True)
    assert_same(bench.outputs(compact=True), bench.outputs(), "compacted = dense", tolerance)
    assert_same(compacted.losses, dense.losses, "losses of compacted = dense", tolerance)
    between = bool(bench.model.memory.between) and bench.model.obstacle("between") is None
    output = bool(bench.model.memory.output) and bench.model.obstacle("output") is None
    for n, memory in compacted.memories.items():
        plain = dense.memories[n]
        require((memory.gates is None) == (plain.gates is None), "gates of compacted = dense")
        if memory.gates is not None and plain.gates is not None:
            assert_same({n: memory.gates}, {n: plain.gates}, "gates of compacted = dense", tolerance)
        if not (between or output):
            same = memory.states.shape == plain.states.shape and memory.counts is None
            require(same, "compacts, but says it does not")
        elif output and memory.gates is not None and not between:
            check_width(memory)


def check_width(memory: Memory) -> None:
    """A compacted memory is as wide as its least pruned sentence, and one stand-in at most a filter."""
    assert memory.gates is not None
    kept = (memory.gates > 0).sum(1)
    if memory.counts is not None:
        stand_ins = (memory.positions < 0).any(0).sum()
        most = int(kept.max()) + int(stand_ins) + 1
        require(memory.states.shape[1] <= most, "a compacted memory is wider than what was kept")


def check_keys_read(bench: Bench) -> None:
    """Compacted: cross-attention gets no more keys than were kept, and one stand-in; its memory is projected once."""
    if not bench.model.compacts:
        return
    told: list[AttentionSeen] = []
    cross = {id(block.cross) for block in bench.model.decoder.layers}
    project, projected = MultiHeadAttention.project_keys_values, list[tuple[int, torch.Size]]()

    def counted(self: MultiHeadAttention, x: Tensor, **layout: bool) -> Any:
        if id(self) in cross:
            projected.append((id(self), x.shape))
        return project(self, x, **layout)

    def note(seen: AttentionSeen) -> None:
        told.append(seen)

    for memory in bench.encode(compact=True).memories.values():
        told.clear()
        projected.clear()
        with bench.model.listen(note), mock.patch.object(MultiHeadAttention, "project_keys_values", counted):
            in_steps(bench, memory)
        read = [each.weights.shape for each in told if each.site == "cross"]
        own = memory.valid & (memory.positions >= 0)
        reopened = memory.valid & (memory.positions < 0)  # stand-ins of several filters, where one opened the last one
        most = int(own.sum(1).max()) + max(int(reopened.any(0).sum()), 1)
        narrow = all(shape[0] == memory.valid.shape[0] and shape[3] <= most for shape in read)
        require(bool(read) and narrow, "cross-attention reads more keys than were kept")
        once = len(projected) == len(cross) and all(shape == memory.states.shape for _, shape in projected)
        require(once, "the memory is projected once a block, not once a step, and not for every hypothesis")


def learned_steps(bench: Bench, wanted: Callable[[Any], bool]) -> set[bool]:
    """For the self-attention steps with learned heads that ``wanted`` accepts: whether they are causal."""
    sites: dict[str, Any] = {"encoder_self": bench.model.encoder, "decoder_self": bench.model.decoder}
    blocks: dict[str, Any] = {site: stack.layers[0] for site, stack in sites.items()}
    learned = {site: block.recurrence is None and block.own.learned_heads > 0 for site, block in blocks.items()}
    return {site == "decoder_self" for site, step in attention_steps(bench.model) if learned.get(site) and wanted(step)}


def check_bands(bench: Bench) -> None:
    """Banded = masked, and bands are gathered wherever a self-attention's pattern has a reach, and nowhere else."""
    expected = learned_steps(
        bench, lambda step: step.pattern is not None and step.pattern.reach is not None and not step.by_distance
    )
    with mock.patch.object(attention, "attend_banded", wraps=attend.attend_banded) as banded:
        with_bands = bench.outputs()
        gathered = {call.kwargs["causal"] for call in banded.call_args_list}
        require(gathered == expected, "bands are gathered where a pattern has a reach, and nowhere else")
        banded.reset_mock()
        for _, step in attention_steps(bench.model):
            step.banded = False
        masked = bench.outputs()
        require(not banded.called, "bands were gathered although they are turned off")
    for _, step in attention_steps(bench.model):
        step.banded = True
    assert_same(with_bands, masked, "banded = masked")


def check_fused(bench: Bench) -> None:
    """The fused route = the general one, wherever it is taken."""
    expected = learned_steps(bench, lambda step: step.fused)
    for compact in (False, True):
        with mock.patch.object(attention, "attend_fused", wraps=attend.attend_fused) as fused:
            routed = bench.outputs(compact=compact)
            require(fused.called or not expected, "nothing was fused")
            fused.reset_mock()
            with ExitStack() as stack:
                for kind in {type(step.transform) for _, step in attention_steps(bench.model)}:
                    stack.enter_context(mock.patch.object(kind, "fusable", False))
                general = bench.outputs(compact=compact)
            require(not fused.called, "fused although it is turned off")
        assert_same(routed, general, f"fused = general, compact={compact}")


def check_alone(bench: Bench) -> None:
    """A sentence alone, without padding = in the batch; and one hypothesis = the same among several."""
    batch = bench.outputs()
    for sentence, compact in [each for each in ((1, False), (2, True)) if each[0] < len(bench.source.valid)]:
        source, target = bench.alone(sentence)
        memories = bench.encode(source=source, compact=compact).memories
        rows = slice(sentence * bench.hypotheses, (sentence + 1) * bench.hypotheses)
        found = {(n, m): hidden for n, memory in memories.items() for m, hidden in bench.decode(memory, target).items()}
        assert_same(found, {key: value[rows] for key, value in batch.items()}, "alone = in a batch")
    for n, memory in bench.encode(compact=True).memories.items():
        single = bench.decode(memory, bench.target[1 :: bench.hypotheses])
        expected = {m: batch[n, m][1 :: bench.hypotheses] for m in single}
        assert_same(single, expected, "one hypothesis = one of several")


def check_listening(bench: Bench) -> None:
    """Listening changes nothing; weights give the context, hide what is hidden, and sum to 1 where they shall."""
    told: list[AttentionSeen] = []
    forward = MultiHeadAttention.forward

    def note(seen: AttentionSeen) -> None:
        told.append(seen)

    def checked(self: MultiHeadAttention, q: Any, kv: Any, keys: Any, step: Any, mask: Any = None) -> Tensor:
        result = forward(self, q, kv, keys, step, mask)
        weights = told[-1].weights
        require((told[-1].site, told[-1].step) == (step.site, step.step), "listeners are told another step")
        again = self.o((weights.to(kv.values.dtype) @ kv.values).transpose(1, 2).flatten(2))
        assert_same({step.site: again}, {step.site: result}, "weights @ values = context")
        check_hidden(told[-1], self.fixed_heads)
        if step.transform.normalised:
            check_sums(told[-1], self.fixed_heads)
        return result

    for compact in (False, True):
        expected = bench.outputs(compact=compact)
        with bench.model.listen(note), mock.patch.object(MultiHeadAttention, "forward", checked):
            assert_same(bench.outputs(compact=compact), expected, "listening changes nothing", 0.0)
    count = len(told)
    bench.outputs()
    require(0 < count == len(told), "a listener is told once it has gone")


def visible_keys(keys: Keys, weights: Tensor) -> Tensor:
    """`Keys.visible` of the last heads, (B, H, Q, K)."""
    return keys.visible()[:, -weights.shape[1] :].expand(weights.shape)


def check_hidden(seen: AttentionSeen, fixed: int) -> None:
    """Mass is not negative, and lies on visible keys only."""
    require(bool((seen.weights >= 0).all()), f"negative weights at {seen.site}")
    padding = ~seen.keys.valid[:, None, None, :].expand(seen.weights.shape)
    require(not bool(seen.weights.masked_select(padding).any()), f"weights on padding at {seen.site}")
    learned = seen.weights[:, fixed:]
    if learned.shape[1]:
        hidden = ~visible_keys(seen.keys, learned)
        require(not bool(learned.masked_select(hidden).any()), f"weights on keys that are not visible at {seen.site}")


def check_sums(seen: AttentionSeen, fixed: int) -> None:
    """Weights of learned heads sum to 1 where a query sees anything, and to 0 where it sees nothing."""
    learned = seen.weights[:, fixed:]
    if learned.shape[1]:
        visible = visible_keys(seen.keys, learned)
        sums = {"sums": learned.sum(-1)}
        assert_same(sums, {"sums": visible.any(-1).to(learned.dtype)}, f"weights sum to 1 at {seen.site}")


def random_total(bench: Bench, *, compact: bool = False) -> Tensor:
    """A random linear function of all outputs and losses."""
    rng = torch.Generator().manual_seed(1)
    losses = [loss.sum() for loss in bench.encode(compact=compact).losses.values()]
    total = torch.stack(losses or [torch.zeros(())]).sum()
    for hidden in bench.outputs(compact=compact).values():
        total = total + (hidden * torch.randn(hidden.shape, generator=rng, dtype=hidden.dtype)).sum()
    return total


def gradients(bench: Bench, *, compact: bool) -> dict[str, Tensor]:
    """Gradients of `random_total`."""
    bench.model.zero_grad()
    random_total(bench, compact=compact).backward()
    found = {name: p.grad.clone() for name, p in bench.model.named_parameters() if p.grad is not None}
    bench.model.zero_grad()
    return found


def check_gradients(bench: Bench) -> None:
    """Gradients of compacted = dense; in training mode they are finite."""
    dense = gradients(bench, compact=False)
    assert_same(gradients(bench, compact=True), dense, "gradients of compacted = dense", 1e-7)
    bench.model.train()
    for name, gradient in gradients(bench, compact=False).items():
        require(bool(gradient.isfinite().all()), f"in training mode, the gradient of {name} is not finite")
    bench.model.eval()


def check_learning(bench: Bench) -> None:
    """Every parameter of a method gets a gradient."""
    # Of the same parameter at several steps or places, one may well be stuck (all gates closed, a query with one key).
    moved: dict[str, bool] = {}
    for name, gradient in gradients(bench, compact=False).items():
        if ".steps." in name or name.startswith("memory."):
            key = re.sub(r"\.\d+\.", ".*.", name)
            moved[key] = moved.get(key, False) or bool(gradient.any())
    still = [name for name, any_moved in moved.items() if not any_moved]
    require(not still, f"parameters of methods that get no gradient: {', '.join(still)}")


def check_single_precision(bench: Bench) -> None:
    """fp32: what is exact in float64 holds to a tolerance. Leaves the model in fp32."""
    bench.model.float()
    check_steps(bench, SINGLE)
    check_compaction(bench, SINGLE)


def check_packed(bench: Bench) -> None:
    """Both engines of decoding compute the same function in fp32, and finite states in bf16.

    Leaves the model packed.
    """
    bench.model.float()
    expected = bench.outputs(compact=True)
    for make in (packed, build):
        model = copy.deepcopy(bench.model)
        with every_kernel():
            engine, ours, what = make(model), replace(bench, model=model), f"{make.__name__} = unpacked"
        assert_same(ours.outputs(compact=True), expected, what, SINGLE)
        for n, memory in ours.encode(compact=True).memories.items():
            steps = {(n, m): hidden for m, hidden in in_steps(ours, memory).items()}
            assert_same(steps, {key: expected[key] for key in steps}, f"{what}, step by step", SINGLE)
            check_engine(ours, engine, memory, {m: expected[n, m] for m in ours.model.plan.decoder_exits})
    build(bench.model, torch.bfloat16)
    for memory in bench.encode(compact=True).memories.values():
        finite = all(bool(hidden.isfinite().all()) for hidden in in_steps(bench, memory).values())
        require(finite, "states in bf16 are not finite")


@contextmanager
def every_kernel() -> Iterator[None]:
    """Engines that are made in the context use every compiled kernel that is right, also those that are slow here."""
    with mock.patch.dict(os.environ, {} if os.environ.get(_SWITCH) == "0" else {_SWITCH: "always"}):
        yield


def check_engine(bench: Bench, engine: Engine, memory: Memory, expected: Mapping[int, Tensor]) -> None:
    """States of an engine, at once and step by step, and the tokens that come next, with and without shortlists."""
    for depth, states in expected.items():
        whole = engine.step(bench.target, engine.new_cache(memory, exits=(depth,), at_once=True))
        assert_same({depth: whole}, {depth: states}, "an engine's states", SINGLE)
    depth, states = max(expected.items())
    logits = bench.model.project(states[:, 0])
    allowed = torch.rand(len(memory.valid), logits.shape[1], generator=torch.Generator().manual_seed(1)) < 0.5
    allowed[:, :4] = True
    for shortlist in (None, allowed):
        cache = engine.new_cache(memory, exits=(depth,), allowed=shortlist)
        last, rules = engine.step(bench.target[:, :1], cache)[:, -1], NextRules(bench.target[:, :0], _forbid, (0, 2))
        scores = torch.zeros(len(memory.valid), bench.hypotheses)
        values, parents, tokens = engine.next_tokens(last, scores, cache, rules, 3)
        hidden = torch.zeros(()) if shortlist is None else shortlist.repeat_interleave(bench.hypotheses, 0).log()
        wanted = _forbid((logits + hidden), tokens) - (logits + hidden).logsumexp(-1, keepdim=True)
        own = wanted.view(len(scores), bench.hypotheses, -1)
        best = own.flatten(1).topk(3, -1).values
        assert_same({depth: values}, {depth: best}, "an engine's best continuations", SINGLE)
        there = own[torch.arange(len(scores))[:, None], parents, tokens]
        assert_same({depth: there}, {depth: best}, "they are those that it names", SINGLE)


def _forbid(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.index_fill(-1, torch.tensor([0, 2]), -torch.inf)


def check_filter_decides(bench: Bench) -> None:
    """The example is worth running: some positions are dropped, and some go on."""
    require(decides(bench), "with these options all positions are kept, or none: register better `examples`")
