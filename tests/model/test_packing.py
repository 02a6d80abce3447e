"""Packed models, as decoding uses them, against the models that were trained."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from sparsenmt.decoding.scores import next_rules
from sparsenmt.engine.build import build, fastest_dtype, named_dtype, packs
from sparsenmt.engine.contract import Continuations, Engine
from sparsenmt.engine.native_engine import NativeEngine
from sparsenmt.engine.products import packed_product
from sparsenmt.engine.search_cache import SearchCache
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.kv_cache import KVCache
from sparsenmt.model.linear import ACTIVATIONS, Activation
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.native.onednn import works
from sparsenmt.native.packing import pack
from sparsenmt.native.token_lists import TokenLists
from sparsenmt.recipe.schema import Decoding
from sparsenmt.testing.fake_device import CUDA, FakeDevice
from tests.model.support import random_model, random_source, random_target
from tests.native.libraries import decoding_kernels
from tests.no_source import no_source

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm, gelu, tied": {"norm": "post", "activation": "gelu", "tie_embeddings": "all"},
    "silu": {"activation": "silu"},
    "gated linear units, rms, wide heads": {"glu": True, "activation": "gelu_tanh", "norm_kind": "rms", "head_size": 9},
    "fixed heads": {"attention": {"encoder_self": {"heads": {"given": {"name": "toy_left"}}}}},
    "nothing learned": {"attention": {"encoder_self": {"heads": {"count": 2, "given": {"name": "toy_left"}}}}},
    "a learned transform and a filter": {
        "attention": {"cross": {"transform": {"name": "toy_temperature"}}},
        "memory": [{"name": "toy_tags"}],
    },
    "a block twice": {"depth": {"name": "toy_revisit"}},
}


def logits(engine: Engine, source: Source, target: Tensor) -> Tensor:
    """(B * R, T, V), decoded step by step from a compacted memory."""
    with torch.no_grad():
        cache = engine.new_cache(engine.encode(source, compact=True).memory)
        steps = [engine.step(target[:, i : i + 1], cache) for i in range(target.shape[1])]
        return engine.project(torch.cat(steps, 1)).float()


@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.005), (torch.int8, 0.1)],
    ids=str,
)
@pytest.mark.parametrize("native", ["0", "always"])
@pytest.mark.parametrize("final", [False, True])
def test_packed_equals_unpacked(
    keys: dict[str, Any],
    dtype: torch.dtype,
    tolerance: float,
    native: str,
    final: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARSENMT_NATIVE", native)
    model = random_model(torch.float32, **keys)
    if dtype == torch.int8 and native == "0":
        pytest.skip("only compiled products are in int8")
    if dtype == torch.int8:
        decoding_kernels(dtype)
    assert packs(model, dtype) == (dtype != torch.float16)  # which is offered on GPUs
    source, target = random_source(), random_target(6, 5)
    expected = logits(TorchEngine(model), source, target)
    found = logits(build(copy.deepcopy(model), dtype, final=final), source, target)
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


def test_packing_keeps_what_methods_learn_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_NATIVE", "0")  # where only products are in bf16, all parameters are kept
    keys = MODELS["a learned transform and a filter"]
    model = random_model(torch.float32, **keys)
    build(model, torch.bfloat16)
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    assert kinds["decoder.steps.0.cross.transform.sharpness"] == kinds["memory.output.0.bias"] == torch.float32
    assert kinds["decoder.layers.0.self_norm.weight"] == torch.bfloat16
    assert "decoder.layers.0.self.q.weight" not in kinds, "unpacked weights are released"
    assert not any(p.requires_grad for p in model.parameters()) and not model.training


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_packed_product(activation: Activation, bias: bool) -> None:
    weight, x = torch.randn(12, 8), torch.randn(3, 5, 8)
    offset = torch.randn(12) if bias else None
    expected = ACTIVATIONS[activation](torch.nn.functional.linear(x, weight, offset))
    torch.testing.assert_close(packed_product(weight, offset, activation)(x), expected, atol=1e-5, rtol=1e-5)


class Gone:
    def __getattr__(self, name: str) -> None:
        raise AttributeError(name)


class Wrong:
    def _reorder_linear_weight(self, weight: Tensor, rows: int) -> Tensor:
        return weight

    def _linear_pointwise(self, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        return 1.01 * torch.nn.functional.linear(x, weight)


@pytest.mark.parametrize("operators", [Gone(), Wrong()])
def test_without_right_private_operators_products_are_plain(operators: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", operators)
    works.cache_clear()
    weight, x = torch.randn(12, 8), torch.randn(3, 8)
    found = packed_product(weight, None)
    works.cache_clear()
    assert torch.equal(found(x), torch.nn.functional.linear(x, weight))


def test_the_fastest_is_one_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(torch.float32)
    assert packs(model, fastest_dtype(model))
    monkeypatch.setattr("sparsenmt.engine.build.rounds", lambda weight, dtype: False)
    assert fastest_dtype(model) == torch.float32 and not packs(model, torch.int8)


def test_half_precision_is_for_gpus() -> None:
    model = random_model(torch.float32)
    with pytest.raises(UserError, match="fp16 matrix products need a GPU"):
        named_dtype(model, "fp16")
    with FakeDevice().running():
        assert named_dtype(model.to(CUDA), "fp16") == torch.float16 and not packs(model, torch.int8)


def next_of(engine: Engine, rows: Tensor, scores: Tensor, width: int, allowed: Tensor | None = None) -> Continuations:
    """The next tokens after states (N, D), of which two never come."""
    memory = Memory(torch.zeros(len(scores), 1, 64), torch.ones(len(scores), 1).bool(), torch.zeros(len(scores), 1))
    cache = SearchCache(KVCache(memory), (2,), None if allowed is None else TokenLists.of(allowed))
    none = torch.empty(len(rows), 0, dtype=torch.long)
    return engine.next_tokens(rows, scores, cache, next_rules(none, Decoding.model_validate({})), width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("listed", [False, True])
def test_continuations_without_logits(dtype: torch.dtype, listed: bool) -> None:
    """Those of the logits, with one call of a kernel; other problems take the logits."""
    found = decoding_kernels(dtype)
    engine = build(random_model(torch.float32, dimension=64, feed_forward=32), dtype)
    assert isinstance(engine, NativeEngine)
    rows, scores = torch.randn(40, 64), -torch.rand(8, 5)
    allowed = (torch.rand(8, 20) < 0.5).index_fill(1, torch.arange(4), True) if listed else None
    with (
        mock.patch.object(found, "next", wraps=found.next) as whole,
        mock.patch.object(found, "next_listed", wraps=found.next_listed) as own,
    ):
        ours = next_of(engine, rows, scores, 6, allowed)
        assert (whole.call_count, own.call_count) == ((0, 1) if listed else (1, 0))
        next_of(engine, rows, scores.double(), 6, allowed)
        next_of(engine, rows, scores, 65, allowed)
        assert whole.call_count + own.call_count == 1
    theirs = TorchEngine.next_tokens
    with mock.patch.object(NativeEngine, "next_tokens", theirs):
        expected = next_of(engine, rows, scores, 6, allowed)
    torch.testing.assert_close(ours[0], expected[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(ours[1], expected[1]) and torch.equal(ours[2], expected[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_rows_that_are_no_whole_vectors_are_gathered(dtype: torch.dtype) -> None:
    found = decoding_kernels(dtype)
    engine = build(random_model(torch.float32, dimension=24, feed_forward=32), dtype)
    allowed = (torch.rand(8, 20) < 0.5).index_fill(1, torch.arange(4), True)
    with mock.patch.object(found, "next_listed", wraps=found.next_listed) as own:
        tokens = next_of(engine, torch.randn(40, 24), -torch.rand(8, 5), 6, allowed)[2]
    assert own.call_count == 0 and bool(allowed.gather(1, tokens).all())


def test_lists_of_tokens_are_selected_and_merged() -> None:
    allowed = torch.rand(6, 40) < 0.2
    lists = TokenLists.of(allowed)
    chosen = torch.tensor([3, 0, 5])
    merged = lists.select(chosen).merge([lists.select(torch.tensor([1])), lists])
    expected = torch.cat([allowed[chosen], allowed[1:2], allowed])
    found = torch.zeros_like(expected)
    found[merged.sentences(), merged.flat()] = True
    assert torch.equal(found, expected) and len(merged) == 10
    assert len(merged.tokens) == int(expected.sum())  # those of no sentence are gone


@pytest.mark.parametrize("size", [32, 40])
def test_rows_come_back_from_a_packed_matrix(size: int) -> None:
    weight = torch.randn(size, 6)
    numbers = torch.tensor([[0, size - 1], [31, 5]])
    packed = pack(weight, None, torch.float32)
    assert torch.equal(packed.rows(numbers), weight[numbers])
    with pytest.raises(ValueError, match="int8"):
        pack(weight, None, torch.int8).rows(numbers)


def test_parts_of_a_matrix_are_rounded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(50, 8)
    whole = pack(weight, None, torch.int8)
    monkeypatch.setattr("sparsenmt.native.packing._ROWS_AT_ONCE", 7)
    parts = pack(weight, None, torch.int8)
    assert whole.scales is not None and parts.scales is not None
    assert whole.sums is not None and parts.sums is not None
    assert torch.equal(whole.panels, parts.panels) and torch.equal(whole.sums, parts.sums)
    assert torch.equal(whole.scales, parts.scales) and torch.equal(
        whole.sums, parts.panels.int().sum((1, 3)).view(-1)[:50]
    )


@pytest.mark.parametrize("tie", ["all", "inputs", "target", "none"])
def test_the_output_table_is_in_memory_once(tie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoding_kernels(torch.float32)
    monkeypatch.setenv("SPARSENMT_NATIVE", "always")
    model = random_model(torch.float32, tie_embeddings=tie)
    source, target = random_source(), random_target(6, 5)
    other = copy.deepcopy(model)
    monkeypatch.setattr("sparsenmt.engine.native_engine.can_hold_table", lambda *_: True)
    twice, once = build(model), build(other, final=True)
    assert model.output_table.numel() and not other.output_table.numel()
    assert torch.equal(logits(once, source, target), logits(twice, source, target))
    rows = torch.tensor([[4, 2, 7]])
    for key in model.embeddings:
        assert torch.equal(other.embeddings.rows(key, rows), model.embeddings.rows(key, rows))
    assert torch.equal(
        no_source(other, 2).states,
        no_source(model, 2).states,
    )
