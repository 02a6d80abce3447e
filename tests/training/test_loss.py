"""The cross-entropy whose gradient is made in the forward pass equals PyTorch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sparsenmt.training import loss
from sparsenmt.training.loss import SmoothedCrossEntropy, backward_through_projection, negative_log_likelihood
from tests.training.support import PIECES, small_model


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_equals_pytorch(smoothing: float) -> None:
    logits = (5 * torch.randn(7, 11, dtype=torch.float64)).requires_grad_()
    target = torch.randint(11, (7,))
    weights = torch.rand(7, dtype=torch.float64)
    found, nll = SmoothedCrossEntropy.apply(logits, target, smoothing)
    expected = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(nll, F.cross_entropy(logits, target, reduction="none"))
    (mine,) = torch.autograd.grad((found * weights).sum(), logits)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), logits)
    torch.testing.assert_close(mine, theirs)


def test_gradcheck() -> None:
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 5, 2, 2])
    assert torch.autograd.gradcheck(lambda x: SmoothedCrossEntropy.apply(x, target, 0.1)[0], (logits,))


def test_half_precision_sums_in_single() -> None:
    logits = torch.randn(3, 6).to(torch.bfloat16).requires_grad_()
    found, nll = SmoothedCrossEntropy.apply(logits, torch.tensor([1, 2, 3]), 0.1)
    assert found.dtype == nll.dtype == torch.float32
    found.sum().backward()
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_projection_in_chunks(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_ROWS", rows)
    model = small_model()
    hidden = torch.randn(10, 16, dtype=torch.float64, requires_grad=True)
    target, weights = torch.randint(PIECES, (10,)), torch.rand(10, dtype=torch.float64)
    expected = F.cross_entropy(model.project(hidden), target, reduction="none", label_smoothing=0.1)
    table = model.embeddings["shared"]
    by_hidden, by_table = torch.autograd.grad((expected * weights).sum(), [hidden, table])
    gradient, sums = backward_through_projection(model, hidden, target, weights, 0.1)
    torch.testing.assert_close(gradient, by_hidden)
    torch.testing.assert_close(table.grad, by_table)
    assert sums.loss == pytest.approx(float((expected * weights).sum().detach()))
    nll = negative_log_likelihood(model, hidden, target)
    torch.testing.assert_close(nll, F.cross_entropy(model.project(hidden), target, reduction="none").detach())
    assert sums.nll == pytest.approx(float(nll.sum()))
    assert not nll.requires_grad
