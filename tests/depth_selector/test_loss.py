"""The classifier's loss against one in plain loops, and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparsenmt.depth_selector.training import selector_loss, soft_f

CASES = [(0.0, 1.0, 1.0), (2.0, 1.0, 1.0), (0.5, 0.5, 0.0), (1.0, 2.0, 0.3), (0.0, 1.0, 0.5)]


def example() -> tuple[Tensor, Tensor, Tensor]:
    """(5, 6) logits and labels, (6) a prior."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(5, 6, dtype=torch.float64, generator=generator)
    labels = (torch.rand(5, 6, generator=generator) < 0.4).double()
    labels[:, 2] = 1  # every sentence has a label
    return logits, labels, torch.rand(6, dtype=torch.float64, generator=generator)


def naive_loss(
    logits: list[list[float]], labels: list[list[float]], prior: list[float], alpha: float, beta: float, weight: float
) -> float:
    """Equations 3 and 4 as they are written, a sentence at a time."""
    total = 0.0
    for xs, ys in zip(logits, labels, strict=True):
        sigmas = [1 / (1 + math.exp(-x)) for x in xs]
        entropy = 0.0
        for sigma, y, p in zip(sigmas, ys, prior, strict=True):
            entropy -= (1 - p) ** alpha * y * math.log(sigma) + (1 - y) * math.log(1 - sigma)
        mu = sum(sigma * y for sigma, y in zip(sigmas, ys, strict=True))
        precision, recall = mu / sum(sigmas), mu / sum(ys)
        f = (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
        total += weight * entropy / len(xs) + (1 - weight) * (1 - f)
    return total / len(logits)


@pytest.mark.parametrize(("alpha", "beta", "weight"), CASES)
def test_as_in_plain_loops(alpha: float, beta: float, weight: float) -> None:
    logits, labels, prior = example()
    found = selector_loss(logits, labels, prior, alpha=alpha, beta=beta, weight=weight)
    expected = naive_loss(logits.tolist(), labels.tolist(), prior.tolist(), alpha, beta, weight)
    assert float(found) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("alpha", "beta", "weight"), CASES)
def test_gradient(alpha: float, beta: float, weight: float) -> None:
    logits, labels, prior = example()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: selector_loss(x, labels, prior, alpha=alpha, beta=beta, weight=weight), (logits,)
    )


def test_alpha_weighs_positive_labels_only() -> None:
    logits, labels, prior = example()
    negative = torch.zeros_like(labels)

    def entropies(which: Tensor) -> list[float]:
        return [float(selector_loss(logits, which, prior, alpha=a, beta=1, weight=1)) for a in (0.0, 3.0)]

    assert entropies(negative)[0] == entropies(negative)[1]
    assert entropies(labels)[0] > entropies(labels)[1]


def test_finite_at_extreme_logits() -> None:
    labels = torch.tensor([[1.0, 0.0]])
    for sign in (1, -1):
        logits = torch.tensor([[-sign * 200.0, sign * 200.0]], requires_grad=True)
        loss = selector_loss(logits, labels, torch.tensor([0.5, 0.5]), alpha=1, beta=1, weight=0.5)
        loss.backward()
        assert loss.isfinite() and logits.grad is not None and logits.grad.isfinite().all()


def test_soft_f_is_f_where_decisions_are_certain() -> None:
    """2 labels, 3 predicted, 1 right: P = 1/3, R = 1/2."""
    logits = torch.tensor([[99.0, -99.0, 99.0, 99.0]], dtype=torch.float64)
    labels = torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    for beta in (0.5, 1.0, 2.0):
        p, r = 1 / 3, 1 / 2
        expected = (1 + beta**2) * p * r / (beta**2 * p + r)
        assert float(soft_f(logits, labels, beta)) == pytest.approx(expected, rel=1e-9)
