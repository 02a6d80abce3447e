"""An encoder in one compiled call, against the same packed model without it."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from sparsenmt.engine.build import build
from sparsenmt.model.protocol import AttentionSeen, Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.native.encoder import EncoderStack
from tests.model.support import layer_by_layer, random_model, random_source
from tests.native.libraries import decoding_kernels

SIZES = {"dimension": 64, "feed_forward": 96, "heads": 4, "encoder_layers": 3}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm": {"norm": "post", "tie_embeddings": "all"},
    "post-norm and a last one": {"norm": "post", "final_norm": True, "norm_epsilon": 0.1, "embedding_norm": True},
    "a filter after it": {"memory": [{"name": "toy_faint"}]},
    "a block twice": {"depth": {"name": "toy_revisit"}},
    "a recurrent decoder": {"recurrence": {"name": "ssru"}},
}
NOT_KNOWN: dict[str, dict[str, Any]] = {
    "gelu": {"activation": "gelu"},
    "a window": {"attention": {"encoder_self": {"pattern": {"name": "toy_lookback", "left": 2}}}},
    "fixed heads": {"attention": {"encoder_self": {"heads": {"given": {"name": "toy_left"}}}}},
    "another transform": {"attention": {"encoder_self": {"transform": {"name": "toy_temperature"}}}},
    "the largest scores": {"attention": {"encoder_self": {"transform": {"name": "topk", "k": 2}}}},
    "heads of an odd size": {"heads": 8},
    "gated linear units": {"glu": True},
    "normalisation without a mean": {"norm_kind": "rms"},
    "wide heads": {"head_size": 32},
}
LENGTHS = [(7, 4, 6), (1,), (5, 5, 5, 5, 5, 5, 5), (90, 150, 3)]


@pytest.fixture(autouse=True)
def compiled() -> None:
    decoding_kernels(torch.float32)


def packed(dtype: torch.dtype = torch.float32, **keys: Any) -> Transformer:
    model = random_model(torch.float32, **{**SIZES, **keys})
    build(model, dtype)
    return model


def calls(model: Transformer, source: Source, exits: tuple[int, ...] | None = None) -> tuple[dict[int, Tensor], int]:
    """The states by depth, zeros in the place of padding, and how many calls there were."""
    with mock.patch.object(EncoderStack, "run", autospec=True, side_effect=EncoderStack.run) as run, torch.no_grad():
        found = model.encode(source, exits=exits, compact=True).memories
    states = {depth: each.states.masked_fill(~each.valid[:, :, None], 0.0) for depth, each in found.items()}
    return states, run.call_count


def without(model: Transformer) -> Transformer:
    """The same model, layer by layer."""
    other = copy.deepcopy(model)
    layer_by_layer(other)
    return other


@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_one_call_is_all_the_layers(keys: dict[str, Any], lengths: tuple[int, ...]) -> None:
    model, source = packed(**keys, max_positions=160), random_source(lengths)
    found, count = calls(model, source)
    expected, none = calls(without(model), source)
    assert (count, none) == (1, 0)
    for depth, states in found.items():
        torch.testing.assert_close(states, expected[depth], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.int8, 0.1)], ids=str)
def test_rounded_products(dtype: torch.dtype, tolerance: float) -> None:
    decoding_kernels(dtype)
    model, source = packed(dtype), random_source()
    (found,), count = calls(model, source)[0].values(), calls(model, source)[1]
    (expected,) = calls(without(model), source)[0].values()
    assert count == 1
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_the_batch_changes_no_bit(dtype: torch.dtype) -> None:
    """Padding takes no part, and rows of other sentences do not change those of one."""
    decoding_kernels(dtype)
    model, source = packed(dtype, max_positions=160), random_source((90, 7, 40, 150, 3))
    (together,) = calls(model, source)[0].values()
    for b, length in enumerate(source.valid.sum(1).tolist()):
        own = Source(source.tokens[b : b + 1, :length], source.valid[b : b + 1, :length], {})
        (alone,) = calls(model, own)[0].values()
        assert torch.equal(alone[0], together[b, :length])


@pytest.mark.parametrize("keys", NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_what_the_kernel_does_not_know_goes_layer_by_layer(keys: dict[str, Any]) -> None:
    assert calls(packed(**keys), random_source())[1] == 0


def test_filters_between_layers_go_layer_by_layer() -> None:
    model = packed(memory=[{"name": "toy_faint", "at": "between"}])
    assert calls(model, random_source())[1] == 0


def test_exits() -> None:
    """Steps after the first exit go one by one."""
    model, source = packed(depth={"name": "tied_multi"}), random_source()
    for exits in ((1,), (3,), (1, 2, 3), (2, 3)):
        found, count = calls(model, source, exits)
        expected, _ = calls(without(model), source, exits)
        assert count == 1 and found.keys() == expected.keys() == set(exits)
        for depth in exits:
            torch.testing.assert_close(found[depth], expected[depth], atol=2e-5, rtol=2e-5)


def test_listeners_disabled_heads_gradients_and_padding_on_the_left_go_layer_by_layer() -> None:
    model, source = packed(), random_source()
    seen: list[AttentionSeen] = []
    with model.listen(seen.append):
        assert calls(model, source)[1] == 0 and seen
    with model.disable_heads("encoder_self", [2]):
        assert calls(model, source)[1] == 0
    turned = Source(source.tokens.flip(1), source.valid.flip(1), source.features)
    assert calls(model, turned)[1] == 0
    with mock.patch.object(EncoderStack, "run", autospec=True, side_effect=EncoderStack.run) as run:
        model.encode(source)
    assert run.call_count == 0
