"""The compiled kernel: right, and never in the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import nn

from sparsenmt.engine import entmax_kernel as native
from sparsenmt.native.library import ALWAYS, SWITCH
from sparsenmt.native.sources import SIMPLEX
from sparsenmt.sparsity.entmax import Entmax
from sparsenmt.sparsity.simplex.function import NEWTON, entmax
from sparsenmt.sparsity.softmax import Softmax
from tests.native.libraries import IN_USE, build_or_skip, builds, simplex_kernel

SCORES = torch.linspace(-2, 2, 24).view(1, 2, 3, 4)


@pytest.fixture(autouse=True)
def found_again() -> Iterator[None]:
    """What a test finds is forgotten after it."""
    native._found.cache_clear()
    yield
    native._found.cache_clear()


@pytest.fixture(scope="module", params=builds(thorough=["avx2"]))
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> native.SimplexKernel:
    """The kernel that is in use, and others as they are built elsewhere."""
    if request.param == IN_USE:
        return simplex_kernel()
    return native.SimplexKernel(build_or_skip(SIMPLEX, request.param, tmp_path_factory))


def test_it_is_right(kernel: native.SimplexKernel) -> None:
    """By the check of every start, with one thread and with several."""
    assert native.error(kernel) <= 1


def test_a_model_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is wrong, turned off, or the model is on another device."""
    found = simplex_kernel()

    def used_by(device: str = "cpu") -> object:
        model = nn.ModuleList([nn.Linear(1, 1, device=device), Entmax(1.5)])
        native.use_kernel(model)
        return model[1].solver

    assert used_by() is found and used_by("meta") is NEWTON
    monkeypatch.setenv(SWITCH, "0")
    assert used_by() is NEWTON
    monkeypatch.delenv(SWITCH)
    native._found.cache_clear()
    monkeypatch.setattr(native, "error", lambda kernel: 1.01)
    assert used_by() is NEWTON


def test_a_model_without_entmax_does_not_load_it(monkeypatch: pytest.MonkeyPatch) -> None:
    native._found.cache_clear()
    monkeypatch.setattr(native, "error", mock.Mock(side_effect=AssertionError("it is loaded")))
    native.use_kernel(nn.ModuleList([nn.Linear(1, 1), Softmax()]))


def test_it_is_for_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, ALWAYS)
    kernel = simplex_kernel()
    with mock.patch.object(kernel, "forward", side_effect=kernel.forward) as forward:
        for scores in (SCORES.double(), torch.zeros(1, 2, 3, 0)):
            assert torch.equal(entmax(scores, 1.3, solver=kernel), entmax(scores, 1.3))
        assert not forward.called
        torch.testing.assert_close(entmax(SCORES, 1.3, solver=kernel), entmax(SCORES, 1.3))
        assert forward.called


@torch.no_grad()
def test_strides_of_scores_and_masks() -> None:
    kernel = simplex_kernel()
    scores = torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0)
    visible = torch.rand(5, 2) < 0.7
    visible[0] = True
    turned = visible.t()[:, None, None]
    torch.testing.assert_close(
        kernel.weights(scores, 1.4, turned, None),
        kernel.weights(scores.contiguous(), 1.4, turned.expand(2, 3, 4, 5).contiguous(), None),
    )


@pytest.mark.parametrize("keys", [1, 13, 16, 24, 25, 128, 129])
def test_neighbours_do_not_matter(kernel: native.SimplexKernel, keys: int) -> None:
    """Short rows are solved together: each gives what it gives alone, whatever it sees, and whatever its alpha is."""
    rng = torch.Generator().manual_seed(1)
    shape = (3, 4, 5, keys)
    scores, given = torch.randn(shape, generator=rng) * 3, torch.randn(shape, generator=rng)
    visible = torch.rand(3, 1, 5, keys, generator=rng) < 0.7
    visible[1, :, 2] = False
    counts = torch.randint(1, 4, (3, keys), generator=rng).float()
    alphas = torch.tensor([1.0, 1.3, 1.5, 2.0])
    mass = kernel.forward(scores, visible, counts, alphas)
    gradient, sums = kernel.backward(mass, given, counts, alphas, of_alpha=True)
    assert sums is not None and not bool(mass[1, :, 2].any())
    for batch, head, query in itertools.product(range(3), range(4), range(5)):
        one = (slice(batch, batch + 1), slice(head, head + 1), slice(query, query + 1))
        own = counts[batch : batch + 1]
        alone = kernel.forward(scores[one], visible[batch : batch + 1, :, one[2]], own, alphas[one[1]])
        slope, bend = kernel.backward(alone, given[one], own, alphas[one[1]], of_alpha=True)
        assert bend is not None
        assert torch.equal(alone, mass[one]) and torch.equal(slope, gradient[one]) and torch.equal(bend, sums[one])
