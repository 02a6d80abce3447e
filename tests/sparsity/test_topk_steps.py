"""Top-k in the compiled step of a decoder, against the same packed model layer by layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from sparsenmt.model.attention import AttentionStep
from sparsenmt.model.protocol import Encoded
from sparsenmt.sparsity.softmax import Softmax
from tests.model.support import layer_by_layer, random_source
from tests.model.test_compiled_step import assert_one_call_is_all, calls, packed
from tests.native.libraries import decoding_kernels


@pytest.fixture(autouse=True)
def compiled() -> None:
    decoding_kernels(torch.float32)


def sites(**k: int) -> dict[str, Any]:
    return {"attention": {site: {"transform": {"name": "topk", "k": value}} for site, value in k.items()}}


@pytest.mark.parametrize(
    "keys",
    [
        sites(decoder_self=3),
        sites(cross=2),
        sites(decoder_self=1, cross=1),
        sites(decoder_self=39, cross=100),
        sites(decoder_self=8, cross=4, encoder_self=2) | {"norm": "post", "heads": 2},
        sites(decoder_self=2, cross=4) | {"depth": {"name": "recurrent"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [(7, 4, 6), (5, 5, 5, 5, 5)], ids=str)
def test_one_call_is_all_the_layers(keys: dict[str, Any], lengths: tuple[int, ...]) -> None:
    assert_one_call_is_all(packed(**keys), random_source(lengths))


def test_more_places_than_are_kept_in_order() -> None:
    assert_one_call_is_all(packed(**sites(cross=70)), random_source((90, 71, 60)))


@pytest.mark.parametrize("k", [1, 3, 70])
def test_equal_keys_are_kept_together(k: int) -> None:
    """Ties: of a memory whose rows are all the same, each gets the same weight, however few places there are."""
    model, source = packed(**sites(cross=k)), random_source((90, 90))
    encode: Any = model.encode
    with mock.patch.object(model, "encode", side_effect=lambda *given, **keys: equal(encode(*given, **keys))):
        found, count = calls(model, source)
        for step in model.decoder.steps.modules():
            if isinstance(step, AttentionStep) and step.site == "cross":
                step.transform = Softmax()
        layer_by_layer(model)
        expected, _ = calls(model, source)
    assert count == len(expected)
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), atol=2e-5, rtol=2e-5)


def equal(encoded: Encoded) -> Encoded:
    """Every entry of a memory becomes the first."""
    memories = {
        depth: replace(memory, states=memory.states[:, :1].expand_as(memory.states).contiguous())
        for depth, memory in encoded.memories.items()
    }
    return replace(encoded, memories=memories)


def test_a_step_that_is_heard_is_the_same() -> None:
    model, source = packed(**sites(decoder_self=3, cross=2)), random_source((7, 4, 6, 5))
    found, count = calls(model, source, heard=15)
    layer_by_layer(model)
    expected, _ = calls(model, source)
    assert count == len(found) - 1
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), atol=2e-5, rtol=2e-5)


def test_keys_that_stand_for_several_go_layer_by_layer() -> None:
    model = packed(memory=[{"name": "toy_faint"}], **sites(cross=2))
    source = random_source((7, 4, 6))
    assert calls(model, source)[1] == 0
    assert calls(packed(memory=[{"name": "toy_faint"}], **sites(decoder_self=2)), source)[1] > 0
