"""The gradients of training in bf16 are those of float64 but for rounding, at real numbers of rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import bf16_gradients
from sparsenmt.model.row_sums import LayerNorm, RMSNorm, look_up

ROWS = 4096


def rows(dimension: int, mean: float, seed: int) -> Tensor:
    """Rows of bf16 numbers that are alike: their mean is not 0."""
    return (torch.randn(ROWS, dimension, generator=torch.Generator().manual_seed(seed)) * 0.1 + mean).bfloat16()


def test_layer_norm_sums_in_fp32() -> None:
    """PyTorch's own gradient of the bias is off by a half."""
    norm = LayerNorm(64)
    torch.nn.init.normal_(norm.weight)
    found = []
    for dtype in (torch.bfloat16, torch.float64):
        norm.bfloat16().to(dtype)
        norm.zero_grad()
        x = rows(64, 0.5, 1).to(dtype).view(64, 64, 64).requires_grad_()
        result = norm(x)
        result.backward(rows(64, 0.05, 2).to(dtype).view_as(result))
        assert x.grad is not None and norm.weight.grad is not None and norm.bias.grad is not None
        found.append([each.double() for each in (result.detach(), x.grad, norm.weight.grad, norm.bias.grad)])
    for rounded, exact in zip(*found, strict=True):
        assert (rounded - exact).norm() < 0.01 * exact.norm()


def test_normalisation_by_the_root_mean_square() -> None:
    """PyTorch's own function in float64; in bf16 the gradient of the weight is summed in fp32."""
    norm, found = RMSNorm(64, 1e-6), []
    torch.nn.init.normal_(norm.weight)
    for dtype in (torch.bfloat16, torch.float64):
        norm.bfloat16().to(dtype).zero_grad()
        x = rows(64, 0.5, 1).to(dtype).requires_grad_()
        result = norm(x)
        result.backward(rows(64, 0.05, 2).to(dtype))
        assert x.grad is not None and norm.weight.grad is not None
        found.append([each.double() for each in (result.detach(), x.grad, norm.weight.grad)])
    torch.testing.assert_close(found[1][0], F.rms_norm(x, (64,), norm.weight, 1e-6))
    for rounded, exact in zip(*found, strict=True):
        assert (rounded - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("trained", ["weight", "bias"])
def test_a_part_of_a_norm_is_trained(trained: str) -> None:
    norm = LayerNorm(16).bfloat16().requires_grad_(False)
    getattr(norm, trained).requires_grad_()
    norm(rows(16, 0.5, 1)).sum().backward()
    assert [name for name, each in norm.named_parameters() if each.grad is not None] == [trained]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_are_pytorchs(dtype: torch.dtype) -> None:
    norm, x = LayerNorm(16).to(dtype), rows(16, 0.5, 1).to(dtype)
    assert torch.equal(norm(x), F.layer_norm(x, (16,), norm.weight, norm.bias))


def test_a_token_that_comes_often_is_summed_in_fp32() -> None:
    """Also of a table whose other rows get nothing."""
    tokens = torch.randint(0, 50, (64, 64), generator=torch.Generator().manual_seed(1))
    tokens[:, ::2] = 7
    given, table = rows(32, 0.05, 2), torch.zeros(60, 32, dtype=torch.bfloat16, requires_grad=True)
    look_up(tokens, table).backward(given.view(64, 64, 32))
    exact = torch.zeros(60, 32, dtype=torch.float64).index_add_(0, tokens.flatten(), given.double())
    assert table.grad is not None and not table.grad[50:].any()
    torch.testing.assert_close(table.grad.double(), exact, atol=0, rtol=2**-8)


FAST, THOROUGH = {"gates"}, {"characters", "post-norm", "relative"}


def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    if name in FAST:
        return ()
    return (pytest.mark.thorough,) if name in THOROUGH else (pytest.mark.slow,)


@pytest.mark.parametrize("name", [pytest.param(each, marks=marks(each)) for each in bf16_gradients.TRIALS])
def test_every_parameter(name: str) -> None:
    """The script's table, and the norm of an update: alike in one batch and in several."""
    trial = bf16_gradients.TRIALS[name]
    exact = bf16_gradients.gradients(trial, torch.float64)
    found = bf16_gradients.gradients(trial, torch.bfloat16)
    off = bf16_gradients.errors(found, exact)
    assert {name: error for name, error in off.items() if error > bf16_gradients.BARS[bf16_gradients.kind(name)]} == {}
    parts = bf16_gradients.gradients(trial, torch.bfloat16, batches=10)
    assert bf16_gradients.norm(found) == pytest.approx(bf16_gradients.norm(exact), rel=0.005)
    assert bf16_gradients.norm(parts) == pytest.approx(bf16_gradients.norm(found), rel=0.001)
