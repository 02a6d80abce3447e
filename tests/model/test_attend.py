"""The three routes from queries, keys and values to contexts, against loops; and rows that see nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparsenmt.model.attend import attend_banded, attend_fused, attend_masked, restrict, weigh
from sparsenmt.model.protocol import Source
from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.entmax15 import Entmax15
from sparsenmt.sparsity.softmax import Softmax
from sparsenmt.sparsity.sparsemax import Sparsemax
from sparsenmt.sparsity.topk import TopK
from tests.model.support import random_model, random_source, random_target
from tests.toys.lookback import Lookback

B, H, E = 2, 3, 4


def tensors(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    shapes = ((B, H, queries, E), (B, H, keys, E), (B, H, keys, E))
    q, k, v = (torch.randn(shape, generator=rng, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return q, k, v


def keys_of(queries: int, keys: int, lengths: tuple[int, int], counts: bool = False) -> Keys:
    valid = torch.arange(keys) < torch.tensor(lengths)[:, None]
    at = torch.arange(keys - queries, keys) if queries <= keys else torch.arange(queries)
    weights = (torch.arange(keys).expand(B, -1) % 4 + 1.0).double() if counts else None
    return Keys(valid, at.expand(B, -1), torch.arange(keys).expand(B, -1), counts=weights)


def in_loops(q: Tensor, k: Tensor, v: Tensor, keys: Keys, causal: bool) -> Tensor:
    """Counted softmax attention, one query at a time."""
    result = torch.zeros(B, H, q.shape[2], E, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(q.shape[2]):
                total, context = 0.0, torch.zeros(E, dtype=torch.float64)
                for j in range(k.shape[2]):
                    hidden = causal and keys.positions[b, j] > keys.queries[b, i]
                    if keys.valid[b, j] and not hidden:
                        count = 1.0 if keys.counts is None else float(keys.counts[b, j])
                        mass = count * math.exp(float((q[b, h, i] @ k[b, h, j]).detach()) / math.sqrt(E))
                        total, context = total + mass, context + mass * v[b, h, j]
                if total:
                    result[b, h, i] = context / total
    return result


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize(
    ("queries", "width", "lengths"), [(5, 5, (5, 5)), (5, 5, (5, 0)), (2, 6, (4, 6)), (1, 4, (4, 1))]
)
def test_against_loops(queries: int, width: int, lengths: tuple[int, int], counts: bool, causal: bool) -> None:
    q, k, v = tensors(queries, width)
    keys = keys_of(queries, width, lengths, counts)
    expected = in_loops(q, k, v, keys, causal)
    general = attend_masked(q, k, v, restrict(keys, None, causal), Softmax(), 0.0)
    torch.testing.assert_close(general, expected, atol=1e-12, rtol=0)
    whole = keys if lengths == (width, width) else restrict(keys, None, False)
    for given in {id(whole): whole, id(keys): restrict(keys, None, False)}.values():
        fused = attend_fused(q, k, v, given, Softmax(), 0.0, causal=causal)
        torch.testing.assert_close(fused, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_that_see_nothing_are_zero_with_finite_gradients(dtype: torch.dtype) -> None:
    keys = keys_of(4, 4, (4, 0))
    for route in ("masked", "fused"):
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in tensors(4, 4))
        if route == "masked":
            context = attend_masked(q, k, v, restrict(keys, None, True), Softmax(), 0.0)
        else:
            context = attend_fused(q, k, v, restrict(keys, None, False), Softmax(), 0.0, causal=True)
        assert not bool(context[1].any()) and bool(context.isfinite().all()), route
        context.sum().backward()
        assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in (q, k, v)), route
        assert v.grad is not None and not bool(v.grad[1].any())


def bf16_tensors(queries: int, width: int, size: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    shapes = (B, H, queries, size), (B, H, width, size)
    q, k = (torch.randn(shape, generator=rng).mul_(2).bfloat16() for shape in shapes)
    return q, k


@pytest.mark.parametrize("transform", [TopK(8), Sparsemax(), Entmax15()])
def test_scores_of_bf16_inputs_are_not_rounded_to_bf16(transform: Transform) -> None:
    q, k = bf16_tensors(64, 40, 64)
    keys = restrict(keys_of(64, 40, (40, 33)), None, False)
    weights, exact = weigh(q, k, keys, transform), weigh(q.double(), k.double(), keys, transform)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.double(), exact, atol=1e-5, rtol=1e-5)
    if isinstance(transform, TopK):
        assert bool((weights.count_nonzero(-1) == 8).all())


def test_gradients_of_bf16_inputs_are_those_of_exact_scores() -> None:
    exact = [x.double().requires_grad_() for x in bf16_tensors(16, 20, 32)]
    inputs = [x.requires_grad_() for x in bf16_tensors(16, 20, 32)]
    keys = restrict(keys_of(16, 20, (20, 13)), None, False)
    factors = torch.randn(B, H, 16, 20, generator=torch.Generator().manual_seed(4))
    found = torch.autograd.grad((weigh(*inputs, keys, Sparsemax()) * factors).sum(), inputs)
    expected = torch.autograd.grad((weigh(*exact, keys, Sparsemax()) * factors).sum(), exact)
    for gradient, true in zip(found, expected, strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.double(), true, atol=1e-3, rtol=2**-8)


class ByFeature(Transform):
    """A softmax that prefers keys by a source feature."""

    position_dependent = True

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        feature = keys.features["rank"].gather(1, keys.positions.clamp(0, keys.features["rank"].shape[1] - 1))
        visible = keys.visible()
        scores = (scores + feature[:, None, None, :] * 0.1).masked_fill(~visible, -math.inf)
        return torch.softmax(scores, -1).masked_fill(~visible, 0.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [(0, 0), (3, 1), (1, 4), (20, 0), (0, 17), (40, 40)])
@pytest.mark.parametrize("length", [1, 16, 37, 64])
def test_bands_equal_masks(length: int, reach: tuple[int, int], causal: bool) -> None:
    q, k, v = tensors(length, length)
    keys = keys_of(length, length, (length, max(length - 5, 1)))
    rank = torch.randint(0, 9, (B, length), generator=torch.Generator().manual_seed(2))
    keys = Keys(keys.valid, keys.queries, keys.positions, features={"rank": rank})
    pattern = Lookback(*reach)
    banded = attend_banded(q, k, v, keys, ByFeature(), 0.0, pattern=pattern, causal=causal)
    masked = attend_masked(q, k, v, restrict(keys, pattern, causal), ByFeature(), 0.0)
    torch.testing.assert_close(banded, masked, atol=1e-12, rtol=0)
    found = torch.autograd.grad(banded.square().sum(), (q, k, v))
    torch.testing.assert_close(found, torch.autograd.grad(masked.square().sum(), (q, k, v)), atol=1e-10, rtol=0)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("transform", ["softmax", "toy_temperature", "toy_recency"])
def test_a_sentence_without_a_piece_is_finite(norm: str, transform: str) -> None:
    sites = {site: {"transform": {"name": transform}} for site in ("encoder_self", "cross")}
    model = random_model(norm=norm, attention=sites)
    source = random_source((4, 3))
    valid = source.valid & torch.tensor([[True], [False]])
    memory = model.encode(Source(source.tokens, valid)).memories[2]
    hidden = model.decode(random_target(2, 3), memory)[2]
    assert bool(hidden.isfinite().all())
    hidden.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_dropout_acts_in_training_only() -> None:
    keys = {"residual": 0.0, "attention": 0.5, "activation": 0.5}
    model = random_model(dropout=keys)
    source, target = random_source(), random_target(3, 4)

    def run() -> Tensor:
        return model.decode(target, model.encode(source).memories[2])[2]

    assert torch.equal(run(), run())
    model.train()
    assert not torch.equal(run(), run())
