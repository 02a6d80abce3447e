"""The keys that alpha-entmax gives weight to: the same in PyTorch, in the compiled kernel and in float64.

A weight below 2^-126 is 0. The routes may differ only in keys so near to that bound, or to the threshold, that the
rounding of fp32 decides: those whose u = 1 + (alpha - 1) d - e (`newton`) lies within `NEAR` of the u of 2^-126; for
softmax, those whose ln p lies within `NEAR_SOFTMAX` of ln 2^-126.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparsenmt.native.library import ALWAYS, SWITCH
from sparsenmt.sparsity.simplex.function import NEWTON, Solver, entmax
from sparsenmt.sparsity.simplex.newton import LEAST
from tests.native.libraries import simplex_kernel

NEAR, NEAR_SOFTMAX = 3e-6, 2e-5
ALPHAS = [1.0, 1.001, 1.01, 1.03, 1.1, 1.3, 1.5, 1.8, 2.0]
ROUTES = {"torch": torch.float32, "native": torch.float32, "double": torch.float64}
"""Route -> its number format."""


def solver_of(route: str, monkeypatch: pytest.MonkeyPatch) -> Solver:
    """The solver of a route; the kernel is used whatever the table of choices says."""
    monkeypatch.setenv(SWITCH, ALWAYS)
    return simplex_kernel() if route == "native" else NEWTON


def above_the_bound(scores: Tensor, alphas: Tensor, visible: Tensor, counts: Tensor) -> Tensor:
    """By how much the exact u of each key exceeds that of 2^-126, by bisection in float64; for softmax, ln p instead.

    Args:
        scores: (B, H, Q, K). Hidden keys get minus infinity, as do the rows that see none.
    """
    z = scores.double().masked_fill(~visible, -torch.inf)
    d = z - z.amax(-1, keepdim=True).clamp_min(-1e300)
    b, c = alphas.double()[:, None, None] - 1, counts.double()[:, None, None]
    soft = b == 0
    power = torch.where(soft, 1.0, b)
    low = torch.zeros_like(d[..., :1])
    high = torch.ones_like(low)
    for _ in range(60):
        middle = (low + high) / 2
        over = (c * (1 + power * d - middle).clamp_min(0) ** (1 / power)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    logs = d - (c * d.exp()).sum(-1, keepdim=True).log()
    return torch.where(soft, logs - math.log(LEAST), 1 + power * d - low - LEAST**power).nan_to_num(nan=-torch.inf)


def rows(keys: int, scale: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores that fall evenly or at random, so that some lie near every bound; visible keys, counts."""
    rng = torch.Generator().manual_seed(seed)
    shape = (2, len(ALPHAS), 3, keys)
    scores = torch.randn(shape, generator=rng) * scale
    scores[:, :, 1] = -torch.rand(shape[:2] + shape[3:], generator=rng) * scale
    visible = torch.rand(2, 1, 3, keys, generator=rng) < 0.8
    return scores, visible.expand(shape), torch.randint(1, 5, (2, keys), generator=rng).float()


@pytest.mark.parametrize("keys", [1, 2, 7, 16, 17, 48, 49, 128, 129, 500, 4096])
def test_the_support_is_the_exact_one_by_every_route(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alphas, near, total, outside = torch.tensor(ALPHAS), 0, 0, 0
    for seed, scale in enumerate((0.5, 8.0, 120.0, 1500.0, 1e4, 120.0, 1500.0)):
        masked, counted = seed % 2 > 0, seed % 4 > 1
        scores, visible, counts = rows(keys, scale, seed)
        visible, counts = visible if masked else visible | True, counts if counted else torch.ones_like(counts)
        margin = above_the_bound(scores, alphas, visible, counts)
        sure = margin.abs() > torch.where(alphas == 1, NEAR_SOFTMAX, NEAR)[:, None, None]
        near, total, outside = near + int((~sure).sum()), total + sure.numel(), outside + int((margin < 0).sum())
        for route in ROUTES:
            leaf, solver = scores.to(ROUTES[route], copy=True).requires_grad_(), solver_of(route, monkeypatch)
            mass = entmax(leaf, alphas.to(leaf), visible if masked else None, counts if counted else None, solver)
            assert torch.equal((mass != 0)[sure], (margin > 0)[sure]), (route, scale)
            assert not bool(((mass != 0) & (mass < LEAST)).any()), (route, scale)
            mass.backward(torch.randn(mass.shape, generator=torch.Generator().manual_seed(seed)).to(leaf))
            assert leaf.grad is not None and not bool(leaf.grad[mass == 0].any()), (route, scale)
    assert near <= 1 + 1e-4 * total, "the tolerance excuses hardly any key"
    assert keys == 1 or outside > total / 10


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("alpha", [1.01, 1.0])
def test_a_weight_that_fp32_cannot_hold_is_none(alpha: float, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.01: by hand, u of the key 70 below is 0.3, its weight 0.3^100; softmax: e^-87 holds, e^-88 does not."""
    dtype, solver = ROUTES[route], solver_of(route, monkeypatch)
    scores = torch.tensor([[[[0.0, -70.0, -99.0, -101.0], [0.0, -40.0, -87.0, -88.0]]]], dtype=dtype)
    expected = [[1, 0, 0, 0], [1, 1, 0, 0]] if alpha == 1.01 else [[1, 1, 0, 0], [1, 1, 1, 0]]
    for each in (alpha, torch.tensor([alpha], dtype=dtype)):
        assert (entmax(scores, each, solver=solver)[0, 0] != 0).int().tolist() == expected
