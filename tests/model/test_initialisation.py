"""Initialisation: fixed by the seed alone, and without a trace in PyTorch's global state."""

from __future__ import annotations

import pytest
import torch

from tests.model.support import fresh_model

KEYS = {"memory": [{"name": "toy_faint"}], "positions": "learned"}


def test_depends_on_the_seed_only() -> None:
    torch.manual_seed(5)
    first = fresh_model(seed=1, **KEYS).state_dict()
    torch.manual_seed(6)
    torch.rand(3)
    again, other = fresh_model(seed=1, **KEYS).state_dict(), fresh_model(seed=2, **KEYS).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if not torch.equal(first[name], other[name])]
    assert {"embeddings.source", "memory.output.0.direction", "positions.source.weight"} <= set(drawn)


def test_leaves_the_global_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    fresh_model(seed=1, **KEYS)
    assert torch.equal(torch.rand(4), expected)


def test_scales() -> None:
    """Glorot-uniform matrices, zero biases, embeddings of standard deviation D^-0.5."""
    weights = fresh_model(dimension=64, feed_forward=256, heads=4).state_dict()
    inner = weights["encoder.layers.0.feed_forward.inner.weight"]
    assert float(inner.std()) == pytest.approx((2 / (64 + 256)) ** 0.5, rel=0.05)
    assert float(weights["embeddings.target"].std()) == pytest.approx(64**-0.5, rel=0.1)
    assert not weights["encoder.layers.0.self.q.bias"].any()
    assert bool((weights["encoder.layers.1.self_norm.weight"] == 1).all())
