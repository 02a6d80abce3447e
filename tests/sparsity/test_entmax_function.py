"""alpha-entmax with exact gradients: against sorts and bisections in loops, and finite differences.

Both routes are held to the same: PyTorch, and the compiled kernel where there is a compiler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from sparsenmt.native.library import ALWAYS, SWITCH
from sparsenmt.sparsity.simplex.function import entmax
from tests.native.libraries import simplex_kernel

ALPHAS = (1.01, 1.25, 1.5, 1.75, 2.0)
SINGLE = 1e-5  # what is allowed in fp32


@pytest.fixture(params=["torch", "native"], autouse=True)
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "native":
        monkeypatch.setenv(SWITCH, ALWAYS)
        monkeypatch.setitem(globals(), "entmax", partial(entmax, solver=simplex_kernel()))
    yield request.param


def by_sorting(z: Tensor, alpha: float) -> Tensor:
    """One row (K), for alpha of 1.5 or 2, from the definitions: the support is a prefix of the sorted scores."""
    scaled = (alpha - 1) * (z - z.max())
    ordered = scaled.sort(descending=True).values
    sizes = torch.arange(1, len(z) + 1, dtype=z.dtype)
    mean, squares = ordered.cumsum(0) / sizes, ordered.square().cumsum(0)
    if alpha == 2:
        thresholds = mean - 1 / sizes
    else:
        thresholds = mean - (mean**2 - (squares - 1) / sizes).clamp_min(0).sqrt()
    size = int((thresholds < ordered).sum())
    return (scaled - thresholds[size - 1]).clamp_min(0) ** (2 if alpha == 1.5 else 1)


def by_bisection(z: Tensor, alpha: float) -> Tensor:
    """One row (K), in float64, for any alpha above 1."""
    scaled = (alpha - 1) * (z - z.max())
    low, high = torch.tensor([-1.0, 0.0], dtype=torch.float64)
    for _ in range(80):
        middle = (low + high) / 2
        total = (scaled - middle).clamp_min(0).pow(1 / (alpha - 1)).sum()
        low, high = (middle, high) if total >= 1 else (low, middle)
    p = (scaled - low).clamp_min(0).pow(1 / (alpha - 1))
    return p / p.sum()


def expected_row(z: Tensor, alpha: float) -> Tensor:
    z = z.double()
    if alpha == 1:
        return torch.softmax(z, -1)
    return by_sorting(z, alpha) if alpha in (1.5, 2.0) else by_bisection(z, alpha)


def expected(scores: Tensor, alpha: float, visible: Tensor | None = None) -> Tensor:
    """Row by row, over what is seen."""
    seen = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible.expand(scores.shape)
    result = torch.zeros_like(scores, dtype=torch.float64)
    for row, out, kept in zip(scores.flatten(0, -2), result.flatten(0, -2), seen.flatten(0, -2), strict=True):
        if kept.any():
            out[kept] = expected_row(row[kept], alpha)
    return result


def random_scores(*shape: int, scale: float = 2.0, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def leaf(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy that gets a gradient."""
    return x.detach().clone().to(dtype).requires_grad_()


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("alpha", (1.0, *ALPHAS))
@pytest.mark.parametrize("scale", [0.1, 2.0, 30.0])
def test_values(alpha: float, scale: float) -> None:
    scores = random_scores(2, 3, 4, 23, scale=scale)
    close(entmax(scores, alpha), expected(scores, alpha), 1e-12)
    single = scores.float()
    close(entmax(single, alpha), expected(single, alpha), SINGLE)
    each = entmax(single, torch.full((3,), alpha))
    close(each, expected(single, alpha), SINGLE)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("keys", [1, 2, 3, 16, 17, 100, 512, 4096])
def test_lengths(alpha: float, keys: int) -> None:
    scores = torch.cat([random_scores(1, 1, 2, keys), random_scores(1, 1, 1, keys, scale=0.01)], 2).float()
    found = entmax(scores, alpha)
    close(found, expected(scores, alpha), SINGLE)
    close(found.sum(-1), torch.ones(1, 1, 3), SINGLE)


@pytest.mark.parametrize("alpha", (1.0, *ALPHAS))
def test_large_scores(alpha: float) -> None:
    scores = random_scores(1, 2, 3, 40, scale=1e4)
    scores[0, 0, 0, :3] = 1e4
    scores[0, 0, 0, 3:] = -1e4
    single = scores.float()
    close(entmax(single, alpha), expected(single, alpha), SINGLE)
    close(entmax(single, alpha)[0, 0, 0, :3], torch.full((3,), 1 / 3), SINGLE)
    close(entmax(scores, alpha), expected(scores, alpha), 1e-12)


@pytest.mark.parametrize("keys", [1, 7, 4096])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_equal_scores_share(alpha: float, keys: int) -> None:
    close(entmax(torch.full((1, 1, 1, keys), 3.7), alpha), torch.full((1, 1, 1, keys), 1 / keys), 1e-7)


@pytest.mark.parametrize("alpha", (1.0, *ALPHAS))
@pytest.mark.parametrize("shape", [(2, 1, 1, 19), (2, 1, 5, 19), (1, 1, 5, 19), (2, 3, 5, 19)])
def test_hidden_keys(alpha: float, shape: tuple[int, ...]) -> None:
    scores = random_scores(2, 3, 5, 19).float()
    visible = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.6
    visible[0, 0, 0] = False
    scores[~visible.expand(scores.shape)] = 50.0  # what is hidden must not matter
    scores.requires_grad_()
    alphas = torch.full((3,), alpha, requires_grad=True)
    found = entmax(scores, alphas, visible)
    close(found.detach(), expected(scores.detach(), alpha, visible), SINGLE)
    hidden = ~visible.expand(scores.shape)
    assert not bool(found[hidden].any())
    assert not bool(found[0, 0, 0].any()), "a row that sees nothing is zero"
    (found * random_scores(2, 3, 5, 19, seed=3)).sum().backward()
    assert scores.grad is not None and alphas.grad is not None
    assert not bool(scores.grad[hidden].any())
    assert bool(scores.grad.isfinite().all()) and bool(alphas.grad.isfinite().all())


def test_nothing_visible_anywhere() -> None:
    scores = torch.randn(1, 2, 3, 4, requires_grad=True)
    alphas = torch.tensor([1.3, 1.0], requires_grad=True)
    entmax(scores, alphas, torch.zeros(1, 1, 1, 4, dtype=torch.bool)).sum().backward()
    assert scores.grad is not None and not bool(scores.grad.any())
    assert alphas.grad is not None and not bool(alphas.grad.any())


@pytest.mark.parametrize("alpha", (1.0, *ALPHAS))
def test_nothing_visible_and_nothing_counted(alpha: float) -> None:
    counts = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 1.0]])
    scores = torch.randn(2, 1, 2, 3, requires_grad=True)
    for each in (alpha, torch.tensor([alpha], requires_grad=True)):
        found = entmax(scores, each, (counts > 0)[:, None, None], counts)
        close(found.detach().sum(-1), torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]]]), SINGLE)
        assert not bool(found[..., 0].any())
        (gradient,) = torch.autograd.grad(found.square().sum(), scores)
        assert bool(gradient.isfinite().all()) and not bool(gradient[0].any()) and not bool(gradient[..., 0].any())


def test_no_rows_and_no_keys() -> None:
    for shape in ((0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)):
        scores = torch.zeros(shape, requires_grad=True)
        found = entmax(scores, torch.tensor([1.3, 1.5], requires_grad=True))
        assert found.shape == shape
        found.sum().backward()


@pytest.mark.parametrize("alpha", (1.0, *ALPHAS))
def test_a_count_is_as_good_as_copies(alpha: float) -> None:
    counts = torch.tensor([[3.0, 1, 2, 1], [1, 1, 1, 5]])
    scores, given = random_scores(2, 2, 3, 4, scale=1.0), random_scores(2, 2, 3, 4, seed=3)
    at = [torch.repeat_interleave(torch.arange(4), counts[row].long()) for row in range(2)]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, SINGLE)):
        z = leaf(scores, dtype)
        a = torch.full((2,), alpha, dtype=dtype, requires_grad=True)
        counted = entmax(z, a, None, counts)
        (counted * given).sum().backward()
        copied_z = leaf(scores, dtype)
        copied_a = torch.full((2,), alpha, dtype=dtype, requires_grad=True)
        total = torch.zeros((), dtype=torch.float64)
        for row in range(2):
            copies = entmax(copied_z[row : row + 1][..., at[row]], copied_a)
            merged = torch.zeros(1, 2, 3, 4, dtype=dtype).index_add(-1, at[row], copies)
            close(counted[row : row + 1].detach(), merged.detach(), tolerance)
            total = total + (merged * given[row]).sum()
        total.backward()
        assert z.grad is not None and copied_z.grad is not None and a.grad is not None and copied_a.grad is not None
        close(z.grad, copied_z.grad, tolerance)
        close(a.grad, copied_a.grad, 10 * tolerance)


def test_heads_have_their_own_alpha() -> None:
    scores = random_scores(2, 6, 4, 9)
    alphas = torch.tensor([1.0, 1.01, 1.4, 1.5, 1.9, 2.0], dtype=torch.float64)
    found = entmax(scores, alphas)
    for head, alpha in enumerate(alphas.tolist()):
        close(found[:, head : head + 1], expected(scores[:, head : head + 1], alpha), 1e-12)
    close(entmax(scores.float(), alphas.float()), found, SINGLE)


@pytest.mark.parametrize("alpha", (1.0, 1.003, *ALPHAS[:-1]))
def test_gradients_by_finite_differences(alpha: float, route: str) -> None:
    if route == "native":
        pytest.skip("float64 takes the other route")
    scores = random_scores(2, 2, 3, 7).requires_grad_()
    alphas = torch.tensor([alpha, 1.37], dtype=torch.float64, requires_grad=True)
    visible = torch.rand(2, 1, 3, 7, generator=torch.Generator().manual_seed(2)) < 0.7
    visible[1, 0, 1] = False
    counts = torch.tensor([[1.0, 2, 1, 1, 3, 1, 1]] * 2, dtype=torch.float64)
    if alpha == 1:  # differences would leave the interval
        assert torch.autograd.gradcheck(lambda z: entmax(z, 1.0, visible, counts), (scores,))
    else:
        assert torch.autograd.gradcheck(lambda z, a: entmax(z, a, visible, counts), (scores, alphas))


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_gradients_of_fixed_alphas(alpha: float, route: str) -> None:
    if route == "native":
        pytest.skip("float64 takes the other route")
    assert torch.autograd.gradcheck(lambda z: entmax(z, alpha), (random_scores(1, 2, 3, 9).requires_grad_(),))


def far_from_the_edge(scores: Tensor, alpha: float, margin: float = 1e-3) -> Tensor:
    """(B, H, Q, 1) bool: rows in which no key is about to enter or to leave the support.

    There p^(2 - alpha), and with it the gradient of the whole row, is a steep function of the scores (for sparsemax a
    step), so that their own rounding to fp32 changes it.
    """
    if alpha == 1:
        return torch.ones_like(scores[..., :1], dtype=torch.bool)
    p = entmax(scores, alpha)
    best = scores.argmax(-1, keepdim=True)
    threshold = (alpha - 1) * scores.gather(-1, best) - p.gather(-1, best) ** (alpha - 1)
    return (((alpha - 1) * scores - threshold).abs() > margin).all(-1, keepdim=True)


@pytest.mark.parametrize("alpha", (1.0, *ALPHAS))
def test_single_gradients_are_the_double_ones(alpha: float) -> None:
    scores, given = random_scores(2, 2, 8, 33), random_scores(2, 2, 8, 33, seed=3)
    kept = far_from_the_edge(scores, alpha)
    assert float(kept.double().mean()) > 0.8
    given = given * kept
    found = []
    for dtype in (torch.float64, torch.float32):
        z = leaf(scores, dtype)
        a = torch.full((2,), alpha, dtype=dtype, requires_grad=True)
        entmax(z, a).backward(given.to(dtype))
        assert z.grad is not None and a.grad is not None
        fixed = leaf(scores, dtype)
        entmax(fixed, alpha).backward(given.to(dtype))
        assert fixed.grad is not None
        close(fixed.grad, z.grad, SINGLE)
        found.append((z.grad.double(), a.grad.double() / (2 * 8)))
    close(found[1][0], found[0][0], SINGLE)
    close(found[1][1], found[0][1], SINGLE)


def test_the_gradient_of_alpha_at_softmax_is_its_limit() -> None:
    """Correia et al. 2019, Eq. 38; and the formula for alpha > 1 tends to it."""
    scores, given = random_scores(1, 1, 1, 11), random_scores(1, 1, 1, 11, seed=3)
    p = torch.softmax(scores, -1)
    squares = p * p.log() ** 2
    limit = float((given * (p * squares.sum(-1, keepdim=True) - squares) / 2).sum())
    for dtype, steps in ((torch.float64, (0.0, 1e-6, 1e-4)), (torch.float32, (0.0, 1e-4, 1e-3))):
        for step in steps:
            alphas = torch.full((1,), 1 + step, dtype=dtype, requires_grad=True)
            entmax(scores.to(dtype), alphas).backward(given.to(dtype))
            assert alphas.grad is not None
            assert float(alphas.grad) == pytest.approx(limit, abs=1e-5 + 20 * step)


def test_the_gradient_of_alpha_is_proposition_1() -> None:
    scores, given, alpha = random_scores(1, 1, 4, 12), random_scores(1, 1, 4, 12, seed=3), 1.3
    alphas = torch.full((1,), alpha, dtype=torch.float64, requires_grad=True)
    p = entmax(scores, alphas)
    p.backward(given)
    p = p.detach()
    spread = torch.where(p > 0, p.clamp_min(1e-300) ** (2 - alpha), 0.0)
    spread = spread / spread.sum(-1, keepdim=True)
    entropy = -torch.xlogy(p, p)
    jacobian = (p - spread) / (alpha - 1) ** 2 + (entropy - spread * entropy.sum(-1, keepdim=True)) / (alpha - 1)
    assert alphas.grad is not None
    assert float(alphas.grad) == pytest.approx(float((given * jacobian).sum()), rel=1e-10)


def test_numbers_that_are_none_stay_visible() -> None:
    """A loss that is not finite is noticed in training; it must not be turned into zeros here."""
    for alpha in (1.0, 1.2, 1.5, 2.0):
        scores = torch.tensor([[[[0.0, math.nan, 1.0], [0.0, 2.0, 1.0]]]])
        found = entmax(scores, alpha)
        assert bool(found[0, 0, 0].isnan().any()) and bool(found[0, 0, 1].isfinite().all())
