"""Products with weights that oneDNN reorders: PyTorch's values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native import onednn
from sparsenmt.native.onednn import Product, linear


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_LEAST_WORK", 0)


def problem(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """x (..., 24), weight (40, 24) and bias (40), which need gradients."""
    torch.manual_seed(3)
    return tuple(x.requires_grad_() for x in (torch.randn(*shape, 24), torch.randn(40, 24), torch.randn(40)))  # type: ignore[return-value]


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4)])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_those_of_pytorch(shape: tuple[int, ...], biased: bool) -> None:
    x, weight, bias = problem(*shape)
    leaves, added = [x, weight, *([bias] if biased else [])], bias if biased else None
    found, expected = linear(x, weight, added), F.linear(x, weight, added)
    torch.testing.assert_close(found, expected)
    assert not found._is_view()
    given = torch.randn_like(expected).mT.contiguous().mT  # another layout
    pairs = zip(torch.autograd.grad(found, leaves, given), torch.autograd.grad(expected, leaves, given), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)


def test_of_a_frozen_weight_and_of_a_fixed_input() -> None:
    x, weight, bias = problem(6)
    out = linear(x, weight.detach(), bias.detach()).sum()
    torch.testing.assert_close(torch.autograd.grad(out, x)[0], weight.detach().sum(0).expand(6, -1))
    linear(x.detach(), weight, bias).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    assert bias.grad is not None


@pytest.mark.parametrize("transposed", [True, False])
def test_a_kept_weight(transposed: bool) -> None:
    _, weight, bias = problem(1)
    rows = torch.randn(9, 40 if transposed else 24)
    matrix = weight.detach() if transposed else weight.detach().t()
    multiply = Product(weight, 5, transposed=transposed, inputs=2)
    for part in rows.split(5):
        torch.testing.assert_close(multiply(part), part @ matrix)
    if not transposed:
        torch.testing.assert_close(multiply(rows, bias.detach()), rows @ matrix + bias.detach())


def test_inputs_of_fewer_rows_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    if not onednn.works(torch.float32):
        pytest.skip("PyTorch has not these operators")
    _, weight, _ = problem(1)
    multiplied, multiply = [], onednn.multiply

    def count(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        multiplied.append(len(x))
        return multiply(x, packed, bias)

    monkeypatch.setattr(onednn, "multiply", count)
    product = Product(weight, 5, inputs=3)
    for rows in (5, 4, 5):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(product(x), x @ weight.detach().t())
    assert multiplied == [5, 5]


def test_without_compiled_kernels_and_in_other_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = problem(5)
    assert linear(x.double(), weight.double(), bias.double()).grad_fn.name() == "AddmmBackward0"  # type: ignore[union-attr]
    monkeypatch.setenv("SPARSENMT_NATIVE", "0")
    assert linear(x, weight, bias).grad_fn.name() == "AddmmBackward0"  # type: ignore[union-attr]
