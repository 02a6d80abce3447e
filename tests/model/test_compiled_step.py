"""A decoder's step in one compiled call, against the same packed model without it."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from sparsenmt.engine.build import build
from sparsenmt.engine.products import CompiledProduct
from sparsenmt.model.protocol import AttentionSeen, Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.native.steps import LayerStack
from tests.model.support import layer_by_layer, random_model, random_source, random_target
from tests.native.libraries import decoding_kernels

SIZES = {"dimension": 64, "feed_forward": 96, "heads": 4, "decoder_layers": 3}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm, one table": {"norm": "post", "tie_embeddings": "all"},
    "pre-norm without a last one, output bias": {"final_norm": False, "output_bias": True, "embedding_norm": True},
    "post-norm and a last one": {"norm": "post", "final_norm": True, "norm_epsilon": 0.1, "decoder_feed_forward": 64},
    "a filter": {"memory": [{"name": "toy_faint"}]},
    "a block twice": {"depth": {"name": "toy_revisit"}},
    "a recurrent layer": {"recurrence": {"name": "ssru"}, "norm": "post"},
}
NOT_KNOWN: dict[str, dict[str, Any]] = {
    "gelu": {"activation": "gelu"},
    "a window": {"attention": {"decoder_self": {"pattern": {"name": "toy_lookback", "left": 2}}}},
    "fixed heads": {"attention": {"decoder_self": {"heads": {"given": {"name": "toy_left"}}}}},
    "another transform": {"attention": {"cross": {"transform": {"name": "toy_temperature"}}}},
    "heads of an odd size": {"heads": 8},
    "gated linear units": {"glu": True},
    "normalisation without a mean": {"norm_kind": "rms"},
    "wide heads": {"head_size": 32},
}


@pytest.fixture(autouse=True)
def compiled() -> None:
    decoding_kernels(torch.float32)


def packed(dtype: torch.dtype = torch.float32, **keys: Any) -> Transformer:
    model = random_model(torch.float32, **{**SIZES, **keys})
    build(model, dtype)
    return model


def search(model: Transformer, source: Source, depth: int | None = None, heard: int | None = None) -> list[Tensor]:
    """States of a search that reorders its hypotheses, and loses sentences and hypotheses on the way.

    Args:
        heard: a step to which somebody listens.
    """
    outputs = []
    with torch.no_grad():
        memory = model.encode(source, compact=True).memories[model.plan.encoder_exits[-1]]
        cache = model.new_cache(memory)
        exits = None if depth is None else (depth,)
        target = random_target(source.tokens.shape[0], 40)

        def step(rows: Tensor, t: int) -> None:
            with model.listen(lambda seen: None) if t == heard else nullcontext():
                found = model.decode(rows[:, t : t + 1], cache.memory, cache=cache, exits=exits)
            outputs.append(found[max(found)])

        step(target, 0)
        many = torch.arange(len(target)).repeat_interleave(6)
        cache.reorder(many)
        target = target[many]
        for t in range(1, 40):
            step(target, t)
            moved = torch.arange(len(target)).view(-1, 6).roll(t, 1)
            if t in (12, 20) and len(moved) > 1:  # the first leaves, and the others change places
                staying = torch.arange(1, len(moved)).flip(0)
                moved = moved[staying]
                cache.keep_sentences(staying)
            cache.reorder(moved.reshape(-1))
            target = target[moved.reshape(-1)]
    return outputs


def calls(
    model: Transformer, source: Source, depth: int | None = None, heard: int | None = None
) -> tuple[list[Tensor], int]:
    """The states, and in how many steps one call did it all."""
    with mock.patch.object(LayerStack, "run", autospec=True, side_effect=LayerStack.run) as run:
        return search(model, source, depth, heard), run.call_count


def assert_one_call_is_all(model: Transformer, source: Source) -> None:
    """Every step is one call, and gives what the layers give one by one."""
    found, count = calls(model, source)
    layer_by_layer(model)
    expected, none = calls(model, source)
    assert (count, none) == (len(expected), 0)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("lengths", [(7, 4, 6), (5, 5, 5, 5, 5, 5, 5)], ids=str)
def test_one_call_is_all_the_layers(keys: dict[str, Any], lengths: tuple[int, ...]) -> None:
    assert_one_call_is_all(packed(**keys), random_source(lengths))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.int8, 0.1)], ids=str)
def test_rounded_products(dtype: torch.dtype, tolerance: float) -> None:
    decoding_kernels(dtype)
    model, source = packed(dtype), random_source()
    found, count = calls(model, source)
    layer_by_layer(model)
    for ours, theirs in zip(found, search(model, source), strict=True):
        assert float((ours - theirs).abs().max()) <= tolerance * float(theirs.abs().max())
    assert count == len(found)


@pytest.mark.parametrize("keys", NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_what_the_kernel_does_not_know_goes_layer_by_layer(keys: dict[str, Any]) -> None:
    assert calls(packed(**keys), random_source())[1] == 0


def test_fewer_layers() -> None:
    """Decoding at a depth; the state after the last layer is not that after the second."""
    model = packed(depth={"name": "tied_multi"})
    source = random_source()
    for depth in (1, 2, 3):
        found, count = calls(model, source, depth)
        other = copy.deepcopy(model)
        layer_by_layer(other)
        expected = search(other, source, depth)
        assert count == len(found)
        torch.testing.assert_close(torch.cat(found), torch.cat(expected), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("step", [5, 15, 25])
def test_one_step_goes_layer_by_layer(step: int) -> None:
    """Also after sentences are finished, whose memory has stayed in the cache until then."""
    model, source = packed(), random_source((7, 4, 6, 5))
    found, count = calls(model, source, heard=step)
    layer_by_layer(model)
    expected = search(model, source)
    assert count == len(found) - 1
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_whoever_listens_is_told() -> None:
    """A listener to attention needs the weights, which the kernel does not give."""
    model, source = packed(), random_source()
    seen: list[AttentionSeen] = []
    with model.listen(seen.append):
        _, count = calls(model, source)
    assert count == 0 and seen


def test_gradients_and_several_positions_go_layer_by_layer() -> None:
    model, source = packed(), random_source()
    memory = model.encode(source, compact=True).memories[model.plan.encoder_exits[-1]]
    with mock.patch.object(LayerStack, "run", autospec=True, side_effect=LayerStack.run) as run:
        model.decode(random_target(3, 1), memory, cache=model.new_cache(memory))
        with torch.no_grad():
            model.decode(random_target(3, 2), memory, cache=model.new_cache(memory))
            model.decode(random_target(3, 1), memory, cache=None)
    assert run.call_count == 0


def test_packing_in_the_kernels_layout_is_for_what_is_compiled() -> None:
    """An encoder that goes layer by layer multiplies with the matrix library."""
    model = packed(attention={"encoder_self": {"pattern": {"name": "toy_lookback", "left": 2}}})
    encoder, decoder = (stack.layers[0].own.o.product for stack in (model.encoder, model.decoder))
    assert isinstance(decoder, CompiledProduct) and not isinstance(encoder, CompiledProduct)
