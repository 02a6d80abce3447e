"""Products in blocks of rows: the values and gradients of plain products, by few shapes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native import row_blocks
from sparsenmt.native.row_blocks import multiply, sum_of_rows


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any processor counts as one on which blocks pay."""
    monkeypatch.setattr(row_blocks, "_pays", lambda: True)


def bf16(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 128, 511, 512, 640, 1500])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_are_those_of_one_product(rows: int, with_bias: bool) -> None:
    x, weight, bias = bf16(rows, 48), bf16(32, 48, seed=1), bf16(32, seed=2) if with_bias else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for out in (None, torch.empty(rows, 32, dtype=torch.bfloat16)):
        found = multiply(weight.t(), x, bias, out)
        assert found.shape == expected.shape and found.is_contiguous()
        torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=5e-2)


def test_batches_ask_for_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plain = set(), row_blocks._multiply

    def note(x: Tensor, *others: Tensor | None) -> Tensor:
        asked.add(len(x))
        return plain(x, *others)

    monkeypatch.setattr(row_blocks, "_multiply", note)
    for rows in range(3000, 4096, 7):
        multiply(bf16(16, 16), bf16(rows, 16))
    assert asked == {128, 256, 384, 512, 2560, 3072, 3584}


@pytest.mark.usefixtures("paid")
@pytest.mark.parametrize("library", ["MKL", "PyTorch"])
@pytest.mark.parametrize("shape", [(5, 137), (700,), (3, 4)], ids=str)
def test_gradients_are_those_of_the_linear_layer(
    monkeypatch: pytest.MonkeyPatch, library: str, shape: tuple[int, ...]
) -> None:
    if library == "PyTorch":
        monkeypatch.setattr(row_blocks, "_agrees", lambda: False)
    elif not row_blocks._agrees():
        pytest.skip("PyTorch's library has no such product")
    given = bf16(*shape, 24, seed=3)
    results = []
    for wide in (False, True):
        inputs = (bf16(*shape, 40), bf16(24, 40, seed=1), bf16(24, seed=2))
        x, weight, bias = (each.double().requires_grad_() if wide else each.requires_grad_() for each in inputs)
        output = F.linear(x, weight, bias) if wide else row_blocks.linear(x, weight, bias)
        (output.relu_() * 1).backward(given.double() if wide else given)  # in place, as activations are
        results.append([output, x.grad, weight.grad, bias.grad])
    for found, expected in zip(*results, strict=True):
        assert found is not None and expected is not None and found.dtype == torch.bfloat16
        torch.testing.assert_close(
            found.double(), expected, rtol=2e-2, atol=2e-2 * float(expected.detach().abs().max())
        )


@pytest.mark.usefixtures("paid")
def test_frozen_weights_get_no_gradient() -> None:
    x, weight = bf16(600, 16).requires_grad_(), bf16(8, 16)
    row_blocks.linear(x, weight, None).sum().backward()
    assert x.grad is not None and weight.grad is None


def test_sums_over_rows_are_formed_in_fp32() -> None:
    if not row_blocks._agrees():
        pytest.skip("PyTorch's library has no such product")
    given, x = bf16(4096, 24), bf16(4096, 40, seed=1)
    found, expected = sum_of_rows(given, x), given.double().t() @ x.double()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(sum_of_rows(given[:, ::2], x[::1]), sum_of_rows(given[:, ::2].contiguous(), x))


def test_other_weights_and_processors_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not row_blocks.fits(torch.randn(4, 4)) and not row_blocks.fits(bf16(4, 4).to("meta"))
    for best in ("avx512_bf16", "avx2"):
        monkeypatch.setenv("SPARSENMT_NATIVE_ISA", best)
        row_blocks._pays.cache_clear()
        assert not row_blocks.fits(bf16(4, 4))
    row_blocks._pays.cache_clear()


def test_a_library_without_the_product_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks.ctypes, "CDLL", lambda name: object())
    row_blocks._mkl.cache_clear()
    row_blocks._agrees.cache_clear()
    try:
        assert not row_blocks._agrees()
        assert sum_of_rows(bf16(9, 2), bf16(9, 3)).shape == (2, 3)
    finally:
        row_blocks._mkl.cache_clear()
        row_blocks._agrees.cache_clear()
