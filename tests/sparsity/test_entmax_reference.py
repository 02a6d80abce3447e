"""alpha-entmax on all that the documentation claims: masks, counts, 1 to 4096 keys, scores up to 1e4 in size.

Each row is compared, in float64 and in fp32 by PyTorch and by the compiled kernel, with references that know neither
masks nor counts: hidden keys are removed, and a key that stands for c keys is repeated c times. One reference is the
public package (https://github.com/deep-spin/entmax), with its gradients; the other bisects in float64, and its
derivatives along random directions are differences.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sparsenmt.native.library import SWITCH
from sparsenmt.sparsity.simplex.function import NEWTON, entmax
from tests.native.libraries import simplex_kernel

ALPHAS = torch.tensor([1.01, 1.1, 1.25, 1.5, 1.75, 2.0])  # one a head; fp32, so that every route has the same
BATCH, QUERIES = 2, 3
MARGIN = 1e-3
ROUTES = {"torch": (torch.float32, "0"), "native": (torch.float32, "always"), "double": (torch.float64, "0")}
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-9}


@dataclass(frozen=True)
class Problem:
    """Scores that fp32 holds, and what to multiply the mass with; all in float64."""

    scores: Tensor  # (B, H, Q, K)
    given: Tensor  # (B, H, Q, K)
    visible: Tensor | None  # (B, 1, Q, K)
    counts: Tensor | None  # (B, K)

    def rows(self) -> list[tuple[tuple[int, int, int], Tensor]]:
        """The places of rows that see something, each with its keys, repeated as often as they count."""
        found = []
        for place in torch.cartesian_prod(*map(torch.arange, self.scores.shape[:3])).tolist():
            batch, head, query = place
            kept = torch.arange(self.scores.shape[-1])
            if self.visible is not None:
                kept = kept[self.visible[batch, 0, query]]
            if self.counts is not None:
                kept = kept.repeat_interleave(self.counts[batch][kept].long())
            if len(kept):
                found.append(((batch, head, query), kept))
        return found


def bisected(z: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """The weights of one row (K), and u - e of every key, by halving the interval of the threshold."""
    scaled = (z - z.max()) * (alpha - 1)
    low, high = -1.0, 0.0
    for _ in range(60):
        middle = (low + high) / 2
        over = float((scaled - middle).clamp_min(0).pow(1 / (alpha - 1)).sum()) >= 1
        low, high = (middle, high) if over else (low, middle)
    p = (scaled - low).clamp_min(0).pow(1 / (alpha - 1))
    return p / p.sum(), scaled - low


def problem(keys: int, kind: str, *, masked: bool, counted: bool, seed: int) -> Problem:
    """``kind``: small scores; scores of 1e4 in size; scores near 1e4, whose differences are small."""
    rng = torch.Generator().manual_seed(seed)
    shape = (BATCH, len(ALPHAS), QUERIES, keys)
    scores = torch.randn(shape, generator=rng)
    scores = {"small": scores * 2, "huge": (scores * 4e3).clamp(-1e4, 1e4), "shifted": 1e4 - 10 + scores * 2}[kind]
    visible = torch.rand(BATCH, 1, QUERIES, keys, generator=rng) < 0.6 if masked else None
    if visible is not None:
        visible[0, 0, 1] = False
    counts = torch.randint(1, 5, (BATCH, keys), generator=rng).double() if counted else None
    made = Problem(scores.double(), torch.randn(shape, generator=rng).double(), visible, counts)
    for place, kept in made.rows():  # where a key is about to enter or leave, fp32 cannot have the gradient
        if float(bisected(made.scores[place][kept], float(ALPHAS[place[1]]))[1].abs().min()) < MARGIN / keys:
            made.given[place] = 0
    return made


Reference = Callable[[Problem], tuple[Tensor, Tensor, Tensor]]
"""Mass; and the gradients of scores and of each row's alpha (B, H, Q)."""


def by_package(made: Problem) -> tuple[Tensor, Tensor, Tensor]:
    import entmax as public

    mass, slopes = torch.zeros_like(made.scores), torch.zeros_like(made.scores)
    bends = torch.zeros(made.scores.shape[:3], dtype=torch.float64)
    for place, kept in made.rows():
        z = made.scores[place][kept].requires_grad_()
        alpha = ALPHAS[place[1]].double().view(1).requires_grad_()
        p = public.entmax_bisect(z - z.detach().max(), alpha, dim=-1, n_iter=60)
        p.backward(made.given[place][kept])
        assert z.grad is not None and alpha.grad is not None
        mass[place] = mass[place].index_add(0, kept, p.detach())
        slopes[place] = slopes[place].index_add(0, kept, z.grad)
        bends[place] = alpha.grad
    return mass, slopes, bends


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Relative where values are above 1."""
    torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)


def by_route(made: Problem, route: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mass, the gradients of scores and alphas, and those of scores with alphas that are not learned."""
    dtype, switch = ROUTES[route]
    monkeypatch.setenv(SWITCH, switch)
    solver = simplex_kernel() if route == "native" else NEWTON
    z, alphas = made.scores.to(dtype, copy=True).requires_grad_(), ALPHAS.to(dtype, copy=True).requires_grad_()
    mass = entmax(z, alphas, made.visible, made.counts, solver)
    mass.backward(made.given.to(dtype))
    fixed = torch.zeros_like(made.scores)
    for head, alpha in enumerate(ALPHAS.tolist()):
        part = made.scores[:, head : head + 1].to(dtype, copy=True).requires_grad_()
        own = entmax(part, alpha, made.visible, made.counts, solver)
        close(own.detach(), mass[:, head : head + 1].detach().double(), 2 * TOLERANCES[dtype])
        own.backward(made.given[:, head : head + 1].to(dtype))
        assert part.grad is not None
        fixed[:, head : head + 1] = part.grad
    assert z.grad is not None and alphas.grad is not None
    return mass.detach(), z.grad, alphas.grad, fixed


CASES = [
    (1, "small", True, True),
    (1, "huge", False, False),
    (2, "shifted", True, True),
    (13, "small", True, True),
    (24, "huge", True, False),
    (25, "shifted", False, True),
    (48, "small", False, False),
    (128, "small", True, True),
    (129, "huge", True, True),
    (129, "small", False, True),
    (300, "shifted", True, True),
    (1000, "small", True, False),
    (4096, "small", True, True),
    (4096, "huge", True, True),
    (4096, "shifted", False, False),
]


@pytest.mark.skipif(importlib.util.find_spec("entmax") is None, reason="the package entmax is not installed")
@pytest.mark.parametrize(("keys", "kind", "masked", "counted"), CASES)
def test_against_the_public_package(
    keys: int, kind: str, masked: bool, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients of scores and of an alpha per head."""
    made = problem(keys, kind, masked=masked, counted=counted, seed=keys)
    assert keys < 2 or float(made.given.any(-1).double().mean()) > 0.6
    mass, slopes, bends = by_package(made)
    for route, (dtype, _) in ROUTES.items():
        found, of_scores, of_alphas, fixed = by_route(made, route, monkeypatch)
        close(found, mass, TOLERANCES[dtype])
        close(of_scores, slopes, TOLERANCES[dtype])
        close(fixed, slopes, 2 * TOLERANCES[dtype])
        close(of_alphas, bends.sum((0, 2)), TOLERANCES[dtype] * BATCH * QUERIES)


@pytest.mark.parametrize(("keys", "kind", "masked", "counted"), CASES)
def test_against_bisection(keys: int, kind: str, masked: bool, counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values; and, in float64, the change along a random direction of scores and alphas, which knows no formula."""
    made = problem(keys, kind, masked=masked, counted=counted, seed=keys + 1)
    rng, step = torch.Generator().manual_seed(1), 1e-6
    ways = torch.randn(made.scores.shape, generator=rng).double()
    turns = torch.tensor([1.0, -1, 1, -1, 1, -1]).double()
    mass, change = torch.zeros_like(made.scores), torch.zeros(len(ALPHAS)).double()
    for place, kept in made.rows():
        z, way, alpha, turn = made.scores[place][kept], ways[place][kept], float(ALPHAS[place[1]]), turns[place[1]]
        mass[place] = mass[place].index_add(0, kept, bisected(z, alpha)[0])
        if made.given[place].any():
            further, back = (bisected(z + s * way, alpha + s * float(turn))[0] for s in (step, -step))
            change[place[1]] += ((further - back) / (2 * step)) @ made.given[place][kept]
    for route, (dtype, _) in ROUTES.items():
        found, of_scores, of_alphas, _ = by_route(made, route, monkeypatch)
        close(found, mass, TOLERANCES[dtype])
        if dtype == torch.float64:
            close((of_scores * ways).sum((0, 2, 3)) + of_alphas * turns, change, 1e-5)
