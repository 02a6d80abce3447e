"""Training skips padding in feed-forward networks: real positions and all gradients stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.model import stacks
from tests.model.support import random_model, random_source, random_target

LENGTHS = (5, 2, 4)


def results(skips: bool, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> list[Tensor]:
    """The real states of encoder and decoder, and the gradients of a projection of them."""
    model, source = random_model(**keys).train(), random_source()
    valid = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    tokens = random_target(3, max(LENGTHS)) * valid
    with monkeypatch.context() as patch:
        if not skips:
            patch.setattr(stacks, "_real_rows", lambda valid: None)
        (memory,) = model.encode(source).memories.values()
        (hidden,) = model.decode(tokens, memory, valid=valid).values()
    states = memory.states[source.valid], hidden[valid]
    direction = torch.arange(states[1].numel(), dtype=torch.float64).view_as(states[1]).sin()
    (states[1] * direction).sum().backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [each.detach() for each in (*states, *found)]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_real_positions_and_gradients_are_the_same(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = zip(results(True, monkeypatch, norm=norm), results(False, monkeypatch, norm=norm), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_padding_is_skipped() -> None:
    """At padding, the states are the input of the network: they differ from those without skipping."""
    model, source = random_model().train(), random_source()
    (skipped,) = model.encode(source).memories.values()
    (whole,) = model.eval().encode(source).memories.values()
    assert torch.allclose(skipped.states[source.valid], whole.states[source.valid])
    assert not torch.allclose(skipped.states[~source.valid], whole.states[~source.valid])
