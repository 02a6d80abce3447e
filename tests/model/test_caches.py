"""The decoder's cache: reordered or with fewer sentences, and how often the memory is projected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from sparsenmt.model.attend import AttentionMask
from sparsenmt.model.attention import KeysValues, MultiHeadAttention
from sparsenmt.model.kv_cache import KVCache
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.sockets import Keys
from sparsenmt.model.transformer import Transformer
from tests.model.support import random_model, random_source, random_target
from tests.toys.recency import Recency

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm": {"norm": "post"},
    "filter": {"memory": [{"name": "toy_faint"}]},
    "window": {"attention": {"decoder_self": {"pattern": {"name": "toy_lookback", "left": 2}}}},
    "the first keys": {"attention": {"decoder_self": {"pattern": {"name": "global", "k": 2}}}},
    "fixed heads": {"attention": {"decoder_self": {"heads": {"given": {"name": "toy_left"}}}}},
    "nothing learned": {"attention": {"decoder_self": {"heads": {"count": 2, "given": {"name": "toy_left"}}}}},
    "a block twice": {"depth": {"name": "toy_revisit"}},
    "a recurrent layer": {"recurrence": {"name": "ssru"}, "norm": "post"},
}
each_model = pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)


def encode(model: Transformer, source: Source, *, compact: bool = True) -> Memory:
    return model.encode(source, compact=compact).memories[model.plan.encoder_exits[-1]]


def last(outputs: dict[int, Tensor]) -> Tensor:
    return outputs[max(outputs)]


@each_model
def test_reordered_hypotheses_go_on_as_if_they_had_always_been_so(keys: dict[str, Any]) -> None:
    model = random_model(**keys)
    memory = encode(model, random_source())
    target = random_target(6, 4)
    order = torch.tensor([1, 1, 2, 2, 5, 4])  # within sentences of two hypotheses
    more = random_target(6, 3, seed=3)
    cache = model.new_cache(memory)
    model.decode(target, cache.memory, cache=cache)
    cache.reorder(order)
    found = [last(model.decode(more[:, i : i + 1], cache.memory, cache=cache)) for i in range(3)]
    expected = last(model.decode(torch.cat([target[order], more], 1), memory))[:, 4:]
    torch.testing.assert_close(torch.cat(found, 1), expected, atol=1e-10, rtol=0)
    assert cache.length == 7


@each_model
def test_the_number_of_hypotheses_may_change(keys: dict[str, Any]) -> None:
    """From one hypothesis a sentence, as a beam starts, to three."""
    model = random_model(**keys)
    memory = encode(model, random_source())
    first, more = random_target(3, 1), random_target(9, 2, seed=3)
    cache = model.new_cache(memory)
    model.decode(first, cache.memory, cache=cache)
    rows = torch.arange(3).repeat_interleave(3)
    cache.reorder(rows)
    found = last(model.decode(more, cache.memory, cache=cache))
    expected = last(model.decode(torch.cat([first[rows], more], 1), memory))[:, 1:]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@each_model
def test_sentences_that_stay_go_on_as_before(keys: dict[str, Any]) -> None:
    model = random_model(**keys)
    source, target = random_source(), random_target(6, 5)
    memory = encode(model, source)
    expected = last(model.decode(target, memory))
    cache = model.new_cache(memory)
    model.decode(target[:, :2], cache.memory, cache=cache)
    for kept, tokens in (([2, 0], slice(2, 3)), ([1], slice(3, 5))):  # of what is left each time
        cache.keep_sentences(torch.tensor(kept))
        rows = torch.tensor([2 * sentence + r for sentence in kept for r in range(2)])
        cache.reorder(rows)
        target, expected = target[rows], expected[rows]
        found = last(model.decode(target[:, tokens], cache.memory, cache=cache))
        torch.testing.assert_close(found, expected[:, tokens], atol=1e-10, rtol=0)
    left = cache.memory
    assert left.states.shape[0] == 1 and torch.equal(left.states, memory.states[:1])
    assert torch.equal(left.valid, memory.valid[:1]) and torch.equal(left.positions, memory.positions[:1])
    for name in ("counts", "gates", "entries"):
        one, all_of_them = getattr(left, name), getattr(memory, name)
        assert (one is None) == (all_of_them is None) and (one is None or torch.equal(one, all_of_them[:1]))
    assert torch.equal(left.features["pos"], source.features["pos"][:1])


def test_layers_share_no_mask_that_each_has_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that depend on the key and on weights of the layer: a mask for all queries, but not for all layers."""

    def score_bias(self: Recency, keys: Keys) -> Tensor:
        return self.slopes[:, None, None] * (keys.positions % 3)[:, None, None, :]

    monkeypatch.setattr(Recency, "position_dependent", False)
    monkeypatch.setattr(Recency, "score_bias", score_bias)
    model = random_model(attention={"cross": {"transform": {"name": "toy_recency"}}})
    memory, target = encode(model, random_source()), random_target(3, 4)
    found = last(model.decode(target, memory))
    made: list[int] = []

    def apart(self: KVCache, step: int, make: Callable[[], AttentionMask | None]) -> AttentionMask | None:
        made.append(step)
        return make()

    monkeypatch.setattr(KVCache, "memory_mask", apart)
    torch.testing.assert_close(found, last(model.decode(target, memory)), atol=1e-12, rtol=0)
    assert made == [0, 1]


@each_model
def test_the_memory_is_projected_once_a_block(keys: dict[str, Any]) -> None:
    model = random_model(**keys)
    memory = encode(model, random_source())
    calls: Counter[int] = Counter()
    project = MultiHeadAttention.project_keys_values

    def counted(self: MultiHeadAttention, x: Tensor, **layout: bool) -> KeysValues:
        calls[id(self)] += x is memory.states
        return project(self, x, **layout)

    cross = {id(block.cross) for block in model.decoder.layers}
    with mock.patch.object(MultiHeadAttention, "project_keys_values", counted):
        cache = model.new_cache(memory)
        for i in range(4):
            model.decode(random_target(6, 4)[:, i : i + 1], cache.memory, cache=cache)
        assert {key for key, count in calls.items() if count} == cross and all(calls[key] == 1 for key in cross)
        calls.clear()
        model.decode(random_target(6, 4), memory)  # without a cache: once a call, also for blocks that run twice
        assert all(calls[key] == 1 for key in cross)


def test_a_reach_bounds_what_is_kept() -> None:
    model = random_model(**MODELS["window"])
    cache = model.new_cache(encode(model, random_source()))
    for i in range(6):
        model.decode(random_target(3, 6)[:, i : i + 1], cache.memory, cache=cache)
    kept = {own.values.content.shape[0] for own in cache._steps.values()}  # type: ignore[attr-defined]
    assert kept == {3}


@pytest.mark.parametrize("keep", [None, 5])
@pytest.mark.parametrize("gradients", [False, True])
def test_what_is_stored_is_what_naive_copies_give(keep: int | None, gradients: bool) -> None:
    """Over many steps: more room is made, rows are doubled, left out and reordered."""
    torch.manual_seed(0)
    memory = Memory(torch.zeros(3, 1, 8), torch.ones(3, 1, dtype=torch.bool), torch.zeros(3, 1, dtype=torch.long))
    cache = KVCache(memory, keep=[keep])
    naive = torch.empty(2, 3, 2, 0, 4)  # keys and values, row by row
    for step in range(90):
        new = torch.randn(2, naive.shape[1], 2, 1 + step % 3, 4, requires_grad=gradients)
        naive = torch.cat([naive if keep is None else naive[..., max(naive.shape[3] - keep, 0) :, :], new], 3)
        cache.advance(new.shape[1], new.shape[3])
        stored, first = cache.append(0, KeysValues(new[0], new[1]))
        assert first == cache.length - naive.shape[3] and stored.length == naive.shape[3]
        found = stored.gather()
        assert found.keys is not None and found.keys.requires_grad is gradients
        torch.testing.assert_close(torch.stack([found.keys, found.values]), naive, atol=0, rtol=0)
        if step % 4 == 3:
            continue  # nothing is reordered before the next step
        count = (6, 6, 4, 2, 9)[step // 18]
        rows = torch.randint(0, naive.shape[1], (count,))
        cache.reorder(rows)
        naive = naive[:, rows]


def test_the_first_positions_stay_beside_the_last() -> None:
    """Over many steps, with rows that are doubled, left out and reordered."""
    torch.manual_seed(0)
    memory = Memory(torch.zeros(3, 1, 8), torch.ones(3, 1, dtype=torch.bool), torch.zeros(3, 1, dtype=torch.long))
    cache = KVCache(memory, keep=[4], first=[3])
    naive = torch.empty(2, 3, 2, 0, 4)
    for step, count in enumerate((1, 1, 1, 2, 1, 3, 1, 1, 6, 1)):
        new = torch.randn(2, naive.shape[1], 2, count, 4)
        before, naive = naive.shape[3], torch.cat([naive, new], 3)
        cache.advance(new.shape[1], count)
        stored, begin = cache.append(0, KeysValues(new[0], new[1]))
        found = stored.gather()
        assert found.keys is not None and begin == max(before - 4, 0)
        first = 0 if before <= 4 else 3
        assert stored.first_length == first and stored.length == first + before + count - begin
        expected = torch.cat([naive[..., :first, :], naive[..., begin:, :]], 3)
        torch.testing.assert_close(torch.stack([found.keys, found.values]), expected, atol=0, rtol=0)
        assert cache.kept_bytes >= (4 * (first > 0) + first) * new[..., :1, :].nbytes
        rows = torch.randint(0, naive.shape[1], ((6, 4, 2, 9)[step % 4],))
        cache.reorder(rows)
        naive = naive[:, rows]


def test_reordering_copies_no_keys() -> None:
    """Only the numbers of slots: what a step has stored stays in its place."""
    model = random_model()
    cache = model.new_cache(encode(model, random_source()))
    model.decode(random_target(6, 4), cache.memory, cache=cache)
    stores = [own.values for own in cache._steps.values()]  # type: ignore[attr-defined]
    before = [store.content.clone() for store in stores]
    places = [store.content.data_ptr() for store in stores]
    cache.reorder(torch.tensor([1, 1, 2, 2, 5, 4]))
    assert places == [store.content.data_ptr() for store in stores]
    assert all(torch.equal(old, store.content) for old, store in zip(before, stores, strict=True))
