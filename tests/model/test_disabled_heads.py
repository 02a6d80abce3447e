"""Disabled heads give zeros: by the recipe, or while a context is open."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.engine.build import build
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.transformer import Transformer
from tests.model.support import random_model, random_source, random_target

GIVEN = {"encoder_self": {"heads": {"given": {"name": "toy_left"}}}}  # heads 1 and 2 of 4


def outputs(model: Transformer, source: Any = None) -> Tensor:
    source = source or random_source()
    memories = model.encode(source).memories
    memory = memories[max(memories)]
    return next(iter(model.decode(random_target(len(source.tokens), 5), memory).values()))


def without_columns(model: Transformer, site: SiteName, heads: list[int]) -> Transformer:
    """The same by other means: the output projection does not read these heads."""
    for block in (model.encoder if site == "encoder_self" else model.decoder).layers:
        attention = block.cross if site == "cross" else block.own
        size = attention.head_size
        with torch.no_grad():
            for head in heads:
                attention.o.weight[:, (head - 1) * size : head * size] = 0
    return model


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("heads", [[1], [2, 4], [1, 2, 3, 4]])
def test_they_give_zeros(site: SiteName, heads: list[int]) -> None:
    model = random_model(attention=GIVEN)
    expected = outputs(without_columns(random_model(attention=GIVEN), site, heads)).detach()
    plain = outputs(model).detach()
    with model.disable_heads(site, heads):
        torch.testing.assert_close(outputs(model), expected, atol=1e-12, rtol=0)
    assert torch.equal(outputs(model), plain)
    assert float((plain - expected).abs().max()) > 1e-3

    given = {**GIVEN.get(site, {}).get("heads", {}), "disabled": heads}
    by_recipe = random_model(attention={**GIVEN, site: {"heads": given}})
    assert model.state_dict().keys() == by_recipe.state_dict().keys()
    torch.testing.assert_close(outputs(by_recipe), expected, atol=1e-12, rtol=0)


def test_contexts_nest_and_add_to_the_recipe() -> None:
    model = random_model(attention={"cross": {"heads": {"disabled": [1]}}})
    first = outputs(model)
    with model.disable_heads("cross", [2]), model.disable_heads("cross", [3]):
        inside = outputs(model)
    assert torch.equal(outputs(model), first)
    expected = outputs(without_columns(random_model(), "cross", [1, 2, 3]))
    torch.testing.assert_close(inside, expected, atol=1e-12, rtol=0)


def test_listeners_are_told_zeros() -> None:
    model = random_model(attention=GIVEN)
    seen: list[AttentionSeen] = []
    with model.listen(seen.append), model.disable_heads("encoder_self", [2, 3]):
        outputs(model)
    for each in seen:
        gone = each.weights[:, [1, 2]].any()
        assert bool(gone) == (each.site != "encoder_self") and bool(each.weights[:, [0, 3]].any())


def test_packed_step_by_step_and_in_training() -> None:
    attention = {"decoder_self": {"heads": {"given": {"name": "toy_left"}, "disabled": [2, 3]}}}
    model, target = random_model(torch.float32, attention=attention), random_target(3, 5)
    expected = outputs(model)
    (expected.sum()).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(bool(gradient.isfinite().all()) for gradient in gradients)
    size = model.decoder.layers[0].own.head_size
    unread = model.decoder.layers[0].own.o.weight.grad[:, size : 3 * size]
    assert not bool(unread.any())
    build(model)
    with torch.inference_mode():
        memories = model.encode(random_source()).memories
        cache = model.new_cache(memories[max(memories)])
        steps = [next(iter(model.decode(target[:, t : t + 1], cache.memory, cache=cache).values())) for t in range(5)]
    torch.testing.assert_close(torch.cat(steps, 1), expected.detach(), atol=1e-5, rtol=1e-5)


def test_there_must_be_such_a_head() -> None:
    model = random_model()
    for heads in ([0], [5], [2, 9]):
        with pytest.raises(ValueError, match="has the heads 1 to 4"), model.disable_heads("cross", heads):
            pass


def test_heads_have_names() -> None:
    model = random_model(attention=GIVEN)
    assert model.head_names("encoder_self") == ("previous", "mean of those before", "learned", "learned")
    assert model.head_names("cross") == ("learned",) * 4
