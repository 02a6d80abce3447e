"""The compiled kernels of training: values and gradients of PyTorch's operators, by one thread and by several."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.engine.training_operators import TrainingOperators
from sparsenmt.model.dropout import LEVELS, Draws, add_with_dropout, dropout, plain_drop
from sparsenmt.native.gradients import GradientKernels, HiddenKeys, error, plain_attention
from tests.native.libraries import training_kernels

DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def found() -> GradientKernels:
    return training_kernels()


def heads(length: int, dtype: torch.dtype, size: int = 48) -> Tensor:
    """(2, 3, length, size), where heads follow positions in memory."""
    return torch.randn(2, length, 3, size).to(dtype).transpose(1, 2).requires_grad_()


def test_agrees_with_pytorch(found: GradientKernels) -> None:
    assert error(found) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("queries", "keys", "causal"), [(1, 1, False), (7, 18, False), (17, 17, True), (50, 33, False)]
)
def test_attention(found: GradientKernels, dtype: torch.dtype, queries: int, keys: int, causal: bool) -> None:
    torch.manual_seed(queries)
    q, k, v = heads(queries, dtype), heads(keys, dtype), heads(keys, dtype)
    bias = torch.zeros(2, 1, 1, keys).to(dtype)
    bias[1, ..., keys // 2 + 1 :] = -torch.inf
    with mock.patch.object(found, "attend", wraps=found.attend) as called:
        result = TrainingOperators(CPU).attend(q, k, v, None if causal else bias, 0.0, causal)
    assert called.call_count == 1
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    hidden = HiddenKeys(None if causal else bias.double().flatten(1), causal)
    expected = plain_attention(wide[0], wide[1], wide[2], hidden)
    given = torch.randn(result.shape).to(dtype)  # not the layout of the result
    ours, theirs = torch.autograd.grad(result, (q, k, v), given), torch.autograd.grad(expected, wide, given.double())
    for x, y in zip((result, *ours), (expected, *theirs), strict=True):
        assert x.dtype == dtype
        torch.testing.assert_close(x.double(), y, atol=4 * DTYPES[dtype], rtol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 15, 16, 33, 100])
@pytest.mark.parametrize("reach", [(0, 0), (2, 1), (9, 0), (20, 31), (200, 200)])
def test_windows(
    found: GradientKernels, dtype: torch.dtype, length: int, reach: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, also where a query sees no key."""
    monkeypatch.setenv("SPARSENMT_NATIVE", "always")
    torch.manual_seed(length)
    q, k, v = (heads(length, dtype) for _ in range(3))
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[1, length // 3 :] = False
    result = TrainingOperators(CPU).attend_window(q, k, v, valid, reach)
    assert result is not None
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    bias = torch.zeros(2, length).masked_fill_(~valid, -torch.inf)
    expected = plain_attention(wide[0], wide[1], wide[2], HiddenKeys(bias, reach=reach))
    given = torch.randn(result.shape).to(dtype)
    ours, theirs = torch.autograd.grad(result, (q, k, v), given), torch.autograd.grad(expected, wide, given.double())
    for x, y in zip((result, *ours), (expected, *theirs), strict=True):
        assert x.dtype == dtype
        torch.testing.assert_close(x.double(), y, atol=4 * DTYPES[dtype], rtol=DTYPES[dtype])


def test_what_is_no_number_stays_none_in_a_window(found: GradientKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_NATIVE", "always")
    q, k, v = (heads(40, torch.float32) for _ in range(3))
    with torch.no_grad():
        k[0, 0, 20] = torch.nan
    result = TrainingOperators(CPU).attend_window(q, k, v, torch.ones(2, 40, dtype=torch.bool), (3, 3))
    assert result is not None
    assert result.isnan().any(-1)[0, 0].nonzero().flatten().tolist() == list(range(17, 24))
    assert int(result.isnan().any(-1).sum()) == 7


def test_what_the_attention_leaves_to_pytorch(found: GradientKernels) -> None:
    def calls(x: Tensor, mask: Tensor | None = None, dropout: float = 0.0) -> int:
        with mock.patch.object(found, "attend", wraps=found.attend) as called:
            TrainingOperators(CPU).attend(x, x, x, mask, dropout, False)
        return called.call_count

    x = heads(5, torch.float32)
    assert calls(x) == 1
    assert calls(x.double()) == calls(x.detach()) == calls(x, torch.zeros(2, 3, 5, 5)) == calls(x, dropout=0.1) == 0
    assert calls(heads(5, torch.float32, size=40)) == 0
    with torch.no_grad():
        assert calls(x) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [5, 64, 1003])
def test_loss(found: GradientKernels, dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    logits, target = (20 * torch.randn(37, size)).to(dtype), torch.randint(size, (37,))
    wide = logits.double().requires_grad_()
    expected = F.cross_entropy(wide, target, reduction="none")
    gradient = torch.autograd.grad(expected.sum(), wide)[0]
    solved = TrainingOperators(CPU).solve(logits, target, 1.0)
    assert solved is not None
    own, logs = solved
    torch.testing.assert_close((logs - own).double(), expected.detach(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(logits.double(), gradient, atol=DTYPES[dtype] / 2, rtol=0)


def test_a_loss_that_is_not_finite_stays_so(found: GradientKernels) -> None:
    for bad in (float("nan"), float("inf")):
        logits = torch.randn(2, 40)
        logits[1, 3] = bad
        _, logs = found.loss(logits, torch.tensor([1, 2]), 0.9)
        assert torch.isfinite(logs).tolist() == [True, False]


def test_targets_outside_of_the_vocabulary_are_refused(found: GradientKernels) -> None:
    with pytest.raises(ValueError, match="targets in the vocabulary"):
        found.loss(torch.randn(1, 40), torch.tensor([40]), 0.9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 16, 4097, 70000])
def test_dropout(found: GradientKernels, dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(count).to(dtype)
    draws = Draws(-0x123456789ABCDEF, count)
    for dropped in (1, LEVELS // 10, LEVELS - 1):
        assert torch.equal(found.drop(x, draws.key, dropped, None), plain_drop(x, draws, dropped))
        exact = plain_drop(x.double(), draws, dropped, x.double())
        relative = 1e-6 if dtype == torch.float32 else 8e-3
        torch.testing.assert_close(found.drop(x, draws.key, dropped, x).double(), exact, atol=1e-6, rtol=relative)
    x[: count // 2] = torch.nan
    kept = found.drop(x, draws.key, LEVELS // 2, None)
    assert bool(kept[: count // 2].isnan().all()) and bool(kept[count // 2 :].isfinite().all())


def kernel_drop(*arguments: Any) -> Tensor:
    return TrainingOperators(CPU).drop(*arguments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drop", [plain_drop, kernel_drop])
def test_a_residual_is_added(dtype: torch.dtype, drop: Any) -> None:
    """Values and gradients are those of ``residual + dropout(x)`` from the same random bits."""
    results = []
    given = torch.randn(5, 33).to(dtype)
    for joined in (False, True):
        torch.manual_seed(1)
        x, residual = (torch.randn(5, 33).to(dtype).requires_grad_() for _ in range(2))
        total = add_with_dropout(residual, x, 0.3, drop) if joined else residual + dropout(x, 0.3, drop)
        total.backward(given)
        assert x.grad is not None and residual.grad is not None
        results.append((total.detach(), x.grad, residual.grad))
    relative, absolute = (1e-6, 1e-6) if dtype == torch.float32 else (8e-3, 2e-2)  # apart, a sum is rounded twice
    for apart, together in zip(*results, strict=True):
        torch.testing.assert_close(together, apart, rtol=relative, atol=absolute)


def test_only_what_needs_a_gradient_gets_one() -> None:
    x, residual = torch.randn(3, 8), torch.randn(3, 8).requires_grad_()
    add_with_dropout(residual, x, 0.5).sum().backward()
    assert x.grad is None and residual.grad is not None and torch.equal(residual.grad, torch.ones(3, 8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_numbers_of_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    found, q, x = training_kernels(), torch.zeros(1, 1, 2, 16, dtype=dtype), torch.zeros(2, 8, dtype=dtype)
    for call in (
        lambda: found.attend(q, q, q, HiddenKeys()),
        lambda: found.loss(x, torch.zeros(2, dtype=torch.long), 1.0),
        lambda: found.drop(x, 1, LEVELS // 2, None),
    ):
        with pytest.raises(ValueError, match="numbers in fp32 or bf16"):
            call()
