"""Softmax with counts: a key that stands for c keys is as good as c keys."""

from __future__ import annotations

import torch

from sparsenmt.model.sockets import Keys
from sparsenmt.sparsity.softmax import Softmax


def keys_of(width: int, counts: list[float] | None = None, allowed: torch.Tensor | None = None) -> Keys:
    at = torch.arange(width)[None]
    return Keys(
        torch.ones(1, width, dtype=torch.bool),
        torch.zeros(1, 2, dtype=torch.long),
        at,
        allowed,
        None if counts is None else torch.tensor([counts], dtype=torch.float64),
    )


def test_a_count_is_as_good_as_copies() -> None:
    scores = torch.randn(1, 2, 2, 3, dtype=torch.float64)
    counted = Softmax()(scores, keys_of(3, [3, 1, 2]))
    copies = Softmax()(scores[..., [0, 0, 0, 1, 2, 2]], keys_of(6))
    merged = torch.stack([copies[..., :3].sum(-1), copies[..., 3], copies[..., 4:].sum(-1)], -1)
    torch.testing.assert_close(counted, merged, atol=1e-12, rtol=0)


def test_what_is_hidden_or_counts_nothing_gets_nothing() -> None:
    allowed = torch.tensor([[[[True, False, True], [False, False, False]]]])
    scores = torch.randn(1, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    weights = Softmax()(scores, keys_of(3, [1, 1, 0], allowed))
    assert weights[0, :, 0].tolist() == [[1, 0, 0]] * 2
    assert not bool(weights[:, :, 1].any())
    weights.square().sum().backward()
    assert scores.grad is not None and bool(scores.grad.isfinite().all())


def test_large_scores_are_finite() -> None:
    weights = Softmax()(torch.tensor([[[[1e4, -1e4], [-1e30, -1e30]]]]), keys_of(2))
    assert weights[0, 0, 0].tolist() == [1, 0] and weights[0, 0, 1].tolist() == [0.5, 0.5]


def test_without_counts_there_is_no_bias() -> None:
    assert Softmax().fusable and Softmax().score_bias(keys_of(2)) is None
