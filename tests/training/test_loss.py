"""The cross-entropy whose gradient is written out equals PyTorch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sparsenmt.model.protocol import NEVER
from sparsenmt.training import loss
from sparsenmt.training.loss import backward_through_projection, negative_log_likelihood
from tests.training.support import PIECES, small_model


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_equals_pytorch_in_chunks(rows: int, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_ROWS", rows)
    model = small_model()
    hidden = (5 * torch.randn(10, 16, dtype=torch.float64)).requires_grad_()
    target, weights = torch.randint(PIECES, (10,)), torch.rand(10, dtype=torch.float64)
    expected = F.cross_entropy(model.project(hidden), target, reduction="none", label_smoothing=smoothing)
    table = model.embeddings["shared"]
    by_hidden, by_table = torch.autograd.grad((expected * weights).sum(), [hidden, table])
    gradient, rows_losses = backward_through_projection(model, hidden, target, weights, smoothing)
    torch.testing.assert_close(gradient, by_hidden)
    torch.testing.assert_close(table.grad, by_table)
    torch.testing.assert_close(rows_losses.loss, expected.detach())
    nll = negative_log_likelihood(model.project, hidden, target)
    torch.testing.assert_close(nll, F.cross_entropy(model.project(hidden), target, reduction="none").detach())
    torch.testing.assert_close(rows_losses.nll, nll)
    assert not nll.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_an_output_bias_and_tokens_that_it_excludes(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smoothing spreads over the tokens that may come: the same as a model without the rows of the others."""
    monkeypatch.setattr(loss, "CHUNK_ROWS", 4)
    model, excluded = small_model(), [1, 3]
    kept = torch.tensor([i for i in range(PIECES) if i not in excluded])
    bias = torch.nn.Parameter(torch.randn(PIECES, dtype=torch.float64))
    bias.data[excluded] = NEVER
    model.output_bias = bias
    hidden = (5 * torch.randn(10, 16, dtype=torch.float64)).requires_grad_()
    target, weights = kept[torch.randint(len(kept), (10,))], torch.rand(10, dtype=torch.float64)
    logits, place = model.project(hidden)[:, kept], (kept == target[:, None]).int().argmax(1)
    expected = F.cross_entropy(logits, place, reduction="none", label_smoothing=smoothing)
    leaves = [hidden, model.embeddings["shared"], bias]
    wanted = torch.autograd.grad((expected * weights).sum(), leaves)
    gradient, rows_losses = backward_through_projection(model, hidden, target, weights, smoothing)
    for found, correct in zip((gradient, model.output_table.grad, bias.grad), wanted, strict=True):
        torch.testing.assert_close(found, correct)
    torch.testing.assert_close(rows_losses.loss, expected.detach())


def test_gradients_of_the_table_add_up() -> None:
    model = small_model()
    table = model.output_table
    hidden, target = torch.randn(3, 16, dtype=torch.float64), torch.tensor([1, 2, 3])
    weights = torch.ones(3, dtype=torch.float64)
    backward_through_projection(model, hidden, target, weights, 0.1)
    assert table.grad is not None
    once = table.grad.clone()
    backward_through_projection(model, hidden, target, weights, 0.1)
    torch.testing.assert_close(table.grad, 2 * once)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_lower_precision_sums_in_single(dtype: torch.dtype, tolerance: float) -> None:
    wide, narrow = small_model(), small_model(dtype=dtype)
    narrow.load_state_dict(wide.state_dict())
    hidden, target = torch.randn(600, 16, dtype=torch.float64), torch.randint(PIECES, (600,))
    weights = torch.rand(600, dtype=torch.float64)
    expected, losses = backward_through_projection(wide, hidden, target, weights, 0.1)
    found, rows = backward_through_projection(narrow, hidden.to(dtype), target, weights.float(), 0.1)
    assert found.dtype == dtype and rows.loss.dtype == rows.nll.dtype == torch.float32
    assert narrow.output_table.grad is not None and narrow.output_table.grad.dtype == dtype
    pairs = [(found, expected), (rows.loss, losses.loss), (narrow.output_table.grad, wide.output_table.grad)]
    for mine, theirs in pairs:
        assert theirs is not None
        assert float((mine.double() - theirs).norm() / theirs.norm()) < tolerance


def test_a_certain_row_is_finite() -> None:
    """The target's probability is below what fp32 can hold, and the likeliest piece's is 1."""
    model = small_model(dtype=torch.float32)
    hidden = 400 * model.output_table.detach()[:1] / model.output_table.detach()[0].norm() ** 2
    target = (model.output_table.detach() @ hidden[0]).argmin()[None]
    gradient, losses = backward_through_projection(model, hidden, target, torch.ones(1), 0.1)
    expected = F.cross_entropy(model.project(hidden).double(), target, reduction="none")
    assert bool(gradient.isfinite().all()) and float(losses.nll) == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize("pieces", [5, 1000, 8001])
def test_probabilities_take_the_place_of_logits(pieces: int) -> None:
    for dtype in (torch.float32, torch.float64):
        logits = 5 * torch.randn(33, pieces, dtype=dtype)
        expected = torch.softmax(logits, -1)
        assert torch.equal(loss._probabilities(logits, dtype), expected) and torch.equal(logits, expected)
