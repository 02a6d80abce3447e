"""Searches that were begun apart and go on together, against each row decoded at once."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from sparsenmt.engine.build import build
from sparsenmt.engine.search_cache import SearchCache
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.attention import KeysValues
from sparsenmt.model.kv_cache import BufferPool
from sparsenmt.model.memory import Memory
from sparsenmt.model.transformer import Transformer
from sparsenmt.native.steps import LayerStack
from tests.model.support import random_model, random_source, random_target
from tests.native.libraries import decoding_kernels

SIZES = {"dimension": 64, "feed_forward": 96, "heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm, one table": {"norm": "post", "tie_embeddings": "all"},
    "learned positions": {"positions": "learned", "max_positions": 12},
    "a filter": {"memory": [{"name": "toy_faint"}]},
    "a block twice": {"depth": {"name": "toy_revisit"}},
    "the best two": {"attention": {"decoder_self": {"transform": {"name": "topk", "k": 2}}}},
    "a recurrent layer": {"recurrence": {"name": "ssru"}, "norm": "post"},
}
LAYER_BY_LAYER: dict[str, dict[str, Any]] = {
    "a window": {"attention": {"decoder_self": {"pattern": {"name": "toy_lookback", "left": 2}}}},
    "the first keys": {"attention": {"decoder_self": {"pattern": {"name": "global", "k": 3}}}},
    "another transform": {"attention": {"decoder_self": {"transform": {"name": "toy_temperature"}}}},
}
EACH = 2  # hypotheses a sentence


class Search:
    """A cache, and the pieces that its rows have been given."""

    def __init__(self, model: Transformer, lengths: tuple[int, ...], seed: int) -> None:
        self.model = model
        memory = model.encode(random_source(lengths, seed), compact=True).memories[model.plan.encoder_exits[-1]]
        self.cache = model.new_cache(memory)
        self.parts = [memory.select(torch.tensor([i])) for i in range(len(lengths))]
        self.rows: list[Tensor] = [torch.empty(0, dtype=torch.long)] * (EACH * len(lengths))

    def go_on(self, count: int, seed: int, listening: bool = False) -> None:
        """So many pieces more, one by one; what comes out is that of the model without a cache."""
        for step in range(count):
            more = random_target(len(self.rows), 1, seed=seed + step)
            self.rows = [torch.cat([row, piece]) for row, piece in zip(self.rows, more, strict=True)]
            with self.model.listen(lambda seen: None) if listening else nullcontext():
                found = self.model.decode(more, self.cache.memory, cache=self.cache)
            for n, row in enumerate(self.rows):
                expected = self.model.decode(row[None], self.parts[n // EACH])
                for depth, hidden in found.items():
                    torch.testing.assert_close(hidden[n, 0], expected[depth][0, -1], **tolerance(hidden))
            # Hypotheses of a sentence change places, or one takes the other's.
            order = torch.arange(len(self.rows)).view(-1, EACH)
            order = order.flip(1) if step % 2 else order[:, :1].expand(-1, EACH)
            self.reorder(order.reshape(-1))

    def reorder(self, order: Tensor) -> None:
        self.cache.reorder(order)
        self.rows = [self.rows[n] for n in order.tolist()]

    def keep(self, *sentences: int) -> None:
        chosen = torch.tensor(sentences)
        self.reorder((chosen[:, None] * EACH + torch.arange(EACH)).view(-1))
        self.cache.keep_sentences(chosen)
        self.parts = [self.parts[i] for i in sentences]

    def merge(self, *others: Search) -> None:
        self.cache = self.cache.merge([other.cache for other in others])
        for other in others:
            self.parts, self.rows = self.parts + other.parts, self.rows + other.rows


def tolerance(x: Tensor) -> dict[str, float]:
    return {"atol": 1e-10, "rtol": 0} if x.dtype == torch.float64 else {"atol": 3e-5, "rtol": 3e-5}


def search_together(model: Transformer, *, listening: bool = False) -> None:
    """Three searches, joined two times, with sentences that leave before and after."""
    first, second, third = (Search(model, lengths, i) for i, lengths in enumerate([(7, 4, 6), (3, 8), (5, 2)]))
    first.go_on(3, 10)
    first.keep(2, 0)
    second.go_on(6, 20)
    third.go_on(1, 30)
    first.merge(second)
    first.go_on(2, 40, listening)
    first.keep(0, 1, 3)
    first.go_on(1, 50)
    first.keep(1, 0)  # those with a longer past have left
    first.merge(third)
    assert first.cache.length == 6
    first.go_on(3, 60)
    first.merge()
    first.go_on(1, 70)


@pytest.mark.parametrize("keys", [*MODELS.values(), *LAYER_BY_LAYER.values()], ids=[*MODELS, *LAYER_BY_LAYER])
@torch.inference_mode()
def test_layer_by_layer(keys: dict[str, Any]) -> None:
    search_together(random_model(**keys))


@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("listening", [False, True])
@torch.inference_mode()
def test_in_one_call(keys: dict[str, Any], listening: bool) -> None:
    """And layer by layer in between, as long as somebody listens."""
    decoding_kernels(torch.float32)
    model = random_model(torch.float32, **{**SIZES, **keys})
    build(model)
    with mock.patch.object(LayerStack, "run", autospec=True, side_effect=LayerStack.run) as run:
        search_together(model, listening=listening)
    assert run.call_count == 3 + 6 + 1 + (0 if listening else 2) + 1 + 3 + 1


@torch.inference_mode()
def test_caches_that_the_compiled_step_reads_can_merge() -> None:
    decoding_kernels(torch.float32)
    for keys, can_merge in (({}, True), (LAYER_BY_LAYER["a window"], False)):
        model = random_model(torch.float32, **{**SIZES, **keys})
        build(model)
        search = Search(model, (3, 4), 1)
        assert search.cache.can_merge is can_merge  # from the beginning
        search.go_on(1, 1)
        assert search.cache.can_merge is can_merge
        search.merge()
        assert search.cache.can_merge is can_merge
        with model.listen(lambda seen: None):
            assert not Search(model, (3, 4), 1).cache.can_merge
        with model.disable_heads("cross", [1]):
            assert not Search(model, (3, 4), 1).cache.can_merge


@torch.inference_mode()
def test_what_has_left_is_not_taken_along() -> None:
    model = random_model()
    search = Search(model, (7, 4, 6), 1)
    search.go_on(2, 1)
    search.keep(1)
    search.merge()
    cache = search.cache
    assert {own.values.content.shape[:2] for own in cache._steps.values()} == {(2, EACH)}
    assert {kv.values.shape[0] for kv in cache._memory_kv.values()} == {1}


@torch.inference_mode()
def test_a_system_without_room_to_spare() -> None:
    """Where memory counts before anybody writes to it, as much is taken as is needed."""
    acquire, refused = BufferPool.acquire, []

    def strict(self: BufferPool, size: int, like: Tensor) -> Tensor:
        if size >= 128 * like.shape[1] * like.shape[2] * like.shape[3]:
            refused.append(size)
            raise RuntimeError("can't allocate memory")
        return acquire(self, size, like)

    with mock.patch.object(BufferPool, "acquire", strict):
        search_together(random_model())
    assert refused


@torch.inference_mode()
def test_a_search_of_few_rows_leaves_large_buffers_to_others() -> None:
    pool, like = BufferPool(), torch.empty(0)
    large, small, other = torch.empty(1000), torch.empty(300), torch.empty(400, dtype=torch.bfloat16)
    pool.release([large, small, other])
    assert pool.acquire(100, like) is small
    assert pool.acquire(240, like).shape == (240,) and len(pool._free) == 2, "a new one"
    assert pool.acquire(250, like) is large
    pool.release([large, small])
    assert pool.acquire(1001, like).shape == (1001,)
    assert pool._free == [other, small], "the largest of those that are too small is replaced"


@torch.inference_mode()
def test_buffers_are_kept_for_the_next_search_until_they_are_released() -> None:
    engine, rows = TorchEngine(random_model()), random_target(3, 1)
    memory = engine.encode(random_source(), compact=True).memory

    def search() -> SearchCache:
        cache = engine.new_cache(memory)
        for _ in range(2):
            engine.step(rows, cache)
        return cache

    def free() -> set[int]:
        gc.collect()  # the cache ends with the search
        return {buffer.data_ptr() for buffer in engine._buffers._free}

    search()
    kept = free()
    assert kept
    search()
    assert free() == kept
    late = search()
    engine.release()
    del late
    assert not free()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_joined_keys_and_values_lie_as_before(transposed: bool, learned: bool) -> None:
    def part(rows: int, length: int) -> KeysValues:
        keys = torch.randn(rows, 2, 4, length).transpose(-1, -2) if transposed else torch.randn(rows, 2, length, 4)
        return KeysValues(keys if learned else None, torch.randn(rows, 2, length, 4), transposed and learned)

    parts = [part(2, 3), part(1, 5)]
    joined = KeysValues.concatenate(parts)
    assert joined.transposed is (transposed and learned) and (joined.keys is None) is not learned
    assert joined.keys is None or (joined.keys.transpose(-1, -2) if transposed else joined.keys).is_contiguous()
    for rows, expected in ((slice(0, 2), parts[0]), (slice(2, 3), parts[1])):
        length = expected.values.shape[2]
        for ours, theirs in ((joined.keys, expected.keys), (joined.values, expected.values)):
            if ours is not None and theirs is not None:
                assert torch.equal(ours[rows, :, :length], theirs) and not bool(ours[rows, :, length:].any())


def test_a_memory_without_counts_beside_one_with_them() -> None:
    def memory(width: int, **parts: Tensor) -> Memory:
        valid = torch.arange(width) < torch.tensor([[width], [1]])
        return Memory(torch.randn(2, width, 4), valid, torch.arange(width).expand(2, -1), **parts)

    plain = memory(4, gates=torch.ones(2, 4))
    counted = memory(2, counts=torch.tensor([[3.0, 1.0], [4.0, 0.0]]), entries=torch.tensor([[0, 0, 0, 1], [0] * 4]))
    joined = Memory.concatenate([plain, counted])
    assert joined.counts is not None and joined.entries is not None and joined.gates is None
    assert joined.counts.tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [3, 1, 0, 0], [4, 0, 0, 0]]
    assert joined.entries.tolist() == [[0, 1, 2, 3], [0, -1, -1, -1], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert joined.valid.sum(1).tolist() == [4, 1, 2, 1]
    assert Memory.concatenate([plain]).counts is None and Memory.concatenate([plain]).entries is None
