"""Packed models, as decoding uses them, against the models that were trained."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.decoding.scores import candidates, never
from sparsenmt.model.linear import ACTIVATIONS, Activation, ListedProduct, packed_product
from sparsenmt.model.protocol import Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.native.packing import pack
from sparsenmt.native.token_lists import TokenLists
from sparsenmt.recipe.schema import Decoding
from tests.model.support import random_model, random_source, random_target
from tests.native.libraries import decoding_kernels

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm, gelu, tied": {"norm": "post", "activation": "gelu", "tie_embeddings": "all"},
    "silu": {"activation": "silu"},
    "fixed heads": {"attention": {"encoder_self": {"heads": {"given": {"name": "toy_left"}}}}},
    "nothing learned": {"attention": {"encoder_self": {"heads": {"count": 2, "given": {"name": "toy_left"}}}}},
    "a learned transform and a filter": {
        "attention": {"cross": {"transform": {"name": "toy_temperature"}}},
        "memory": [{"name": "toy_tags"}],
    },
    "a block twice": {"depth": {"name": "toy_revisit"}},
}


def logits(model: Transformer, source: Source, target: Tensor) -> Tensor:
    """(B * R, T, V), decoded step by step from a compacted memory."""
    with torch.no_grad():
        cache = model.new_cache(next(iter(model.encode(source, compact=True).memories.values())))
        steps = [model.decode(target[:, i : i + 1], cache.memory, cache=cache) for i in range(target.shape[1])]
        return model.project(torch.cat([next(iter(step.values())) for step in steps], 1)).float()


@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.int8, 0.1)], ids=str
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
    assert model.packs(dtype)
    source, target = random_source(), random_target(6, 5)
    expected = logits(model, source, target)
    packed = copy.deepcopy(model)
    packed.pack(dtype, final=final)
    found = logits(packed, source, target)
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())
    assert (packed.state_dict()["decoder.layers.0.self.o.weight"].numel() == 0) == final
    assert packed.state_dict().keys() == model.state_dict().keys()


def test_packing_keeps_what_methods_learn_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_NATIVE", "0")  # where only products are in bf16, all parameters are kept
    keys = MODELS["a learned transform and a filter"]
    model = random_model(torch.float32, **keys)
    model.pack(torch.bfloat16)
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    assert kinds["decoder.steps.0.cross.transform.sharpness"] == kinds["memory.output.0.bias"] == torch.float32
    assert kinds["decoder.layers.0.self.q.weight"] == torch.bfloat16
    assert not any(p.requires_grad for p in model.parameters()) and not model.training


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_packed_product(activation: Activation, bias: bool) -> None:
    weight, x = torch.randn(12, 8), torch.randn(3, 5, 8)
    offset = torch.randn(12) if bias else None
    expected = ACTIVATIONS[activation](torch.nn.functional.linear(x, weight, offset))
    torch.testing.assert_close(packed_product(weight, offset, activation)(x), expected, atol=1e-5, rtol=1e-5)


def test_without_the_private_operators_products_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def __getattr__(self, name: str) -> None:
            raise AttributeError(name)

    monkeypatch.setattr(torch.ops, "mkldnn", Gone())
    weight, x = torch.randn(12, 8), torch.randn(3, 8)
    assert torch.equal(packed_product(weight, None)(x), torch.nn.functional.linear(x, weight))


def test_a_wrong_packed_product_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def _reorder_linear_weight(self, weight: Tensor, rows: int) -> Tensor:
            return weight

        def _linear_pointwise(self, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
            return 1.01 * torch.nn.functional.linear(x, weight)

    monkeypatch.setattr(torch.ops, "mkldnn", Wrong())
    weight, x = torch.randn(12, 8), torch.randn(3, 8)
    assert torch.equal(packed_product(weight, None)(x), torch.nn.functional.linear(x, weight))


def test_the_fastest_is_one_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(torch.float32)
    assert model.packs(model.fastest_dtype())
    monkeypatch.setattr("sparsenmt.model.transformer.rounds", lambda weight, dtype: False)
    assert model.fastest_dtype() == torch.float32 and not model.packs(torch.int8)


@pytest.mark.parametrize("unknown", ["allow", "forbid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_continuations_without_logits(dtype: torch.dtype, unknown: str) -> None:
    """Those of `candidates` in the logits, wherever they are found; elsewhere nothing."""
    decoding_kernels(dtype)
    model = random_model(torch.float32)
    assert model.packs(dtype)
    rows, scores, chosen = torch.randn(40, 16), -torch.rand(8, 5), Decoding.model_validate({"unknown": unknown})
    gone = never(chosen)
    assert model.continuations(rows, scores, gone, 6) is None  # nothing is packed
    model.pack(dtype)
    found = model.continuations(rows, scores, gone, 6)
    assert found is not None
    expected = candidates(model.project(rows), torch.empty(40, 0, dtype=torch.long), scores, 6, chosen)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(found[1], expected[1]) and torch.equal(found[2], expected[2])
    assert model.continuations(rows, scores.double(), gone, 6) is None
    assert model.continuations(rows, scores, gone, 65) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_continuations_of_lists(dtype: torch.dtype) -> None:
    """Those of a mask; rows of the table that are no whole vectors have none."""
    found = decoding_kernels(dtype)
    weight, bias, rows, scores = torch.randn(90, 64), torch.randn(90), torch.randn(15, 64), -torch.rand(5, 3)
    allowed = torch.rand(5, 90) < 0.3
    allowed[:, :4] = True
    product = ListedProduct.of(weight, bias, None if dtype == torch.float32 else dtype)
    lists = TokenLists.of(allowed).select(torch.tensor([4, 0, 1, 3, 2])).merge([])
    ours = product.continuations(rows, lists, scores, (0, 2), 6)
    mask = torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf)[[4, 0, 1, 3, 2]]
    theirs = found.next(rows, found.layout.pack(weight, bias, dtype), scores, (0, 2), 6, mask)
    assert ours is not None
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(ours[1], theirs[1]) and torch.equal(ours[2], theirs[2])
    assert product.continuations(rows.double(), lists, scores, (0, 2), 6) is None
    assert product.continuations(rows, lists, scores, (0, 2), 65) is None
    assert ListedProduct.of(weight[:, :50], bias, None).continuations(rows, lists, scores, (0, 2), 6) is None


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
    model.pack(torch.float32)
    once = copy.deepcopy(model)
    monkeypatch.setattr("sparsenmt.model.transformer.can_hold_table", lambda _: True)
    model.pack(torch.float32)
    once.pack(torch.float32, final=True)
    assert model.output_table.numel() and not once.output_table.numel()
    assert torch.equal(logits(once, source, target), logits(model, source, target))
    chosen, hidden = torch.tensor([4, 2, 7]), torch.randn(3, model.output_table.shape[1])
    assert torch.equal(once.output_of(chosen).project(hidden), model.output_of(chosen).project(hidden))
    assert torch.equal(once.no_source(2).states, model.no_source(2).states)
