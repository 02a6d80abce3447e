"""Top-k against a sort in plain loops: ties, counts, gradients; and top-k out of a window."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparsenmt.assemble.model import build_model
from sparsenmt.errors import UserError
from sparsenmt.model.sockets import Keys
from sparsenmt.recipe import schema
from sparsenmt.sparsity.kth_largest import kth_largest
from sparsenmt.sparsity.topk import TIE_TOLERANCE, TopK, largest
from sparsenmt.sparsity.topk_oow import TopKOutOfWindow

B, H, Q = 2, 3, 4


def scores_of(width: int, seed: int = 1) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(B, H, Q, width, generator=rng, dtype=torch.float64)


def keys_of(width: int, *, counts: bool = False, causal: bool = False, seed: int = 1) -> Keys:
    """Of the second row, only half of the keys are there; with ``causal``, the queries are the last Q positions."""
    rng = torch.Generator().manual_seed(seed)
    at = torch.arange(width).expand(B, -1)
    queries = torch.arange(width - Q, width).expand(B, -1) if causal else torch.arange(Q).expand(B, -1)
    valid = at < torch.tensor([[width], [(width + 1) // 2]])
    weights = torch.randint(0, 4, (B, width), generator=rng).double() if counts else None
    allowed = valid[:, None, None, :]
    if causal:
        allowed = allowed & (queries[:, None, :, None] >= at[:, None, None, :])
    return Keys(valid, queries, at, allowed, weights)


def by_sorting(row: list[float], counts: list[int], k: int) -> set[int]:
    """Which keys are kept: every key is written down as often as it counts; then the k-th largest decides."""
    written = sorted((score for score, count in zip(row, counts, strict=True) for _ in range(count)), reverse=True)
    if len(written) <= k:
        return {j for j, count in enumerate(counts) if count}
    bar = written[k - 1]
    return {j for j, score in enumerate(row) if counts[j] and score >= bar - TIE_TOLERANCE * (1 + abs(bar))}


def in_loops(scores: Tensor, keys: Keys, k: int) -> Tensor:
    result = torch.zeros_like(scores)
    visible = keys.visible().expand(scores.shape)
    for b in range(scores.shape[0]):
        counts = [1] * scores.shape[-1] if keys.counts is None else [int(c) for c in keys.counts[b]]
        for h in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                seen = [c if visible[b, h, i, j] else 0 for j, c in enumerate(counts)]
                row = scores[b, h, i].tolist()
                kept = by_sorting(row, seen, k)
                total = sum(seen[j] * math.exp(row[j]) for j in kept)
                for j in kept:
                    result[b, h, i, j] = seen[j] * math.exp(row[j]) / total
    return result


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3, 7, 8, 9, 100])
@pytest.mark.parametrize("width", [4, 8, 31])
def test_against_a_sort(width: int, k: int, counts: bool, causal: bool) -> None:
    scores, keys = scores_of(width), keys_of(width, counts=counts, causal=causal)
    torch.testing.assert_close(TopK(k)(scores, keys), in_loops(scores, keys, k), atol=1e-12, rtol=0)


def test_k_keys_are_kept() -> None:
    mass = TopK(5)(scores_of(31), keys_of(31))
    assert ((mass > 0).sum(-1) == 5).all()
    torch.testing.assert_close(mass.sum(-1), torch.ones(B, H, Q, dtype=torch.float64), atol=1e-12, rtol=0)


def row_of(*scores: float, counts: list[float] | None = None) -> tuple[Tensor, Keys]:
    at = torch.arange(len(scores))[None]
    weights = None if counts is None else torch.tensor([counts], dtype=torch.float64)
    keys = Keys(at >= 0, at[:, :1], at, counts=weights)
    return torch.tensor([[[scores]]], dtype=torch.float64), keys


@pytest.mark.parametrize(
    ("scores", "k", "kept"),
    [
        ((3.0, 1, 1, 1, 0), 2, [0, 1, 2, 3]),
        ((3.0, 1, 1 - 1.9e-5, 1 - 2.1e-5, 0), 2, [0, 1, 2]),  # 1e-5 (1 + |t|) below t = 1
        ((1e4, 1e4 - 0.09, 1e4 - 0.11), 1, [0, 1]),
        ((-3.0, -1, -1 - 1.9e-5, -1 - 2.1e-5), 1, [1, 2]),
        ((0.0, 0, 0, 0), 1, [0, 1, 2, 3]),
    ],
)
def test_ties_are_kept(scores: tuple[float, ...], k: int, kept: list[int]) -> None:
    mass = TopK(k)(*row_of(*scores))
    assert mass[0, 0, 0].nonzero().flatten().tolist() == kept


@pytest.mark.parametrize("k", range(1, 12))
@pytest.mark.parametrize("at", [-1.0, 0.0, 0.5, 2.0])
def test_a_count_is_as_good_as_copies_that_differ_by_rounding(k: int, at: float) -> None:
    others = [2.0, 1.5, 0.7, 0.2, -0.4, -2.0]
    noise = [1e-7, -2e-7, 0.0, 3e-7]
    counted = TopK(k)(*row_of(at, *others, counts=[4.0] + [1.0] * 6))[0, 0, 0]
    copies = TopK(k)(*row_of(*(at + e for e in noise), *others))[0, 0, 0]
    merged = torch.cat([copies[:4].sum(0, keepdim=True), copies[4:]])
    torch.testing.assert_close(counted, merged, atol=1e-6, rtol=0)
    assert ((counted > 0) == (merged > 0)).all()


def test_gradients_flow_through_kept_scores_only() -> None:
    scores, keys = scores_of(8).requires_grad_(), keys_of(8, counts=True)
    mass = TopK(3)(scores, keys)
    (gradient,) = torch.autograd.grad((mass * scores_of(8, seed=2)).sum(), scores)
    assert not bool(gradient[mass == 0].any()) and bool(gradient[mass > 0].any())
    for transform in (TopK(3), TopKOutOfWindow(4, causal=False)):
        assert torch.autograd.gradcheck(lambda x, t=transform: t(x, keys_of(8)), (scores,))


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("k", [1, 5, 50])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_rows_that_see_nothing_are_zero_with_zero_gradients(k: int, counts: bool, scale: float) -> None:
    allowed = torch.tensor([True, False])[:, None, None, None].expand(B, 1, 1, 8)
    keys = replace(keys_of(8, counts=counts), allowed=allowed)
    scores = (scale * scores_of(8)).float().requires_grad_()
    for transform in (TopK(k), TopKOutOfWindow(max(k, 2), causal=False)):
        mass = transform(scores, keys)
        assert not bool(mass[1].any()) and bool(mass.isfinite().all())
        (gradient,) = torch.autograd.grad(mass.square().sum(), scores)
        assert bool(gradient.isfinite().all()) and not bool(gradient[1].any())


def test_hidden_keys_take_no_place() -> None:
    scores, keys = scores_of(9), keys_of(9)
    wide = torch.cat([scores, torch.full_like(scores, 1e3)], -1)
    padded = keys_of(18)
    valid = torch.cat([keys.valid, torch.zeros_like(keys.valid)], 1)
    padded = replace(padded, valid=valid, allowed=valid[:, None, None, :])
    for k in (2, 4, 12):
        torch.testing.assert_close(TopK(k)(wide, padded)[..., :9], TopK(k)(scores, keys), atol=1e-15, rtol=0)


def out_of_window_in_loops(scores: Tensor, keys: Keys, left: int, right: int, k: int) -> Tensor:
    result = torch.zeros_like(scores)
    visible = keys.visible().expand(scores.shape)
    for b in range(B):
        for h in range(H):
            for i in range(scores.shape[2]):
                at = int(keys.queries[b, i])
                seen = [j for j in range(scores.shape[3]) if visible[b, h, i, j]]
                near = {j for j in seen if at - left <= j <= at + right}
                rest = sorted((j for j in seen if j not in near), key=lambda j, r=scores[b, h, i]: -float(r[j]))
                kept = near | set(rest[:k])
                total = sum(math.exp(scores[b, h, i, j]) for j in kept)
                for j in kept:
                    result[b, h, i, j] = math.exp(scores[b, h, i, j]) / total
    return result


@pytest.mark.parametrize(
    ("k", "causal", "left", "right"),
    [
        (2, False, 0, 0),
        (2, True, 0, 0),
        (4, False, 1, 0),
        (4, True, 1, 0),
        (6, False, 1, 1),
        (7, False, 1, 1),
        (7, True, 2, 0),
        (40, True, 19, 0),
    ],
)
@pytest.mark.parametrize("width", [4, 9, 30])
def test_out_of_window(width: int, k: int, causal: bool, left: int, right: int) -> None:
    scores, keys = scores_of(width), keys_of(width, causal=causal)
    found = TopKOutOfWindow(k, causal=causal)(scores, keys)
    expected = out_of_window_in_loops(scores, keys, left, right, k - k // 2)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_out_of_window_has_no_meaning_at_cross_attention() -> None:
    section = schema.ModelSection.model_validate({"attention": {"cross": {"transform": {"name": "topk_oow"}}}})
    with pytest.raises(UserError, match="positions of the target and of the source cannot be compared"):
        build_model(section, source_size=9, target_size=9)


def test_kept_keys_are_told_from_hidden_ones_at_the_lowest_scores() -> None:
    lowest = torch.finfo(torch.float64).min
    scores, keys = row_of(0.0, lowest, 1.0)
    assert largest(scores, keys.visible(), 3).all()
    hidden = torch.tensor([[[[True, True, False]]]])
    assert largest(scores, hidden, 2)[0, 0, 0].tolist() == [True, True, False]


@pytest.mark.parametrize("width", [1, 5, 511, 512, 513, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_the_kth_largest_at_any_width(width: int, dtype: torch.dtype) -> None:
    values = (1000 * torch.randn(3, 2, width, generator=torch.Generator().manual_seed(width))).to(dtype)
    if dtype != torch.int64:
        values[0, 0, : width // 2] = -math.inf
    before = values.clone()
    for k in {1, 2, width // 2, width - 1, width} & set(range(1, width + 1)):
        found = kth_largest(values, k)
        assert torch.equal(found, values.sort(-1, descending=True).values[..., k - 1 : k])
    assert torch.equal(values, before)
