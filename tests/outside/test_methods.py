"""The four methods against loops written from their papers, and by the rules that every method keeps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.model.attend import restrict
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity import registry
from sparsenmt.testing import RULES, check_method
from tests.outside import registered
from tests.outside.longformer import Longformer, LongformerOptions
from tests.outside.norm_quantile import NormQuantile, NormQuantileOptions
from tests.outside.sigmoid_attention import SigmoidAttention
from tests.outside.softmax_sink import SinkOptions, SinkSoftmax

B, H, L = 2, 3, 7


def keys_of(*, causal: bool = False, counts: bool = False) -> Keys:
    at = torch.arange(L).expand(B, -1)
    keys = Keys(at < torch.tensor([[L], [4]]), at, at)
    if counts:
        keys = Keys(keys.valid, at, at, None, torch.tensor([[1.0, 3, 1, 0, 1, 1, 2], [2, 1, 1, 1, 0, 0, 0]]).double())
    return restrict(keys, None, causal)


def scores(seed: int = 1) -> Tensor:
    return torch.randn(B, H, L, L, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "first"), [(3, 2), (4, 0), (1, 1), (50, 3)])
def test_the_window_and_the_global_positions(window: int, first: int, causal: bool) -> None:
    pattern = Longformer(LongformerOptions(window=window, first=first), causal=causal)
    allowed = restrict(keys_of(), pattern, causal).allowed
    assert allowed is not None
    for b, real in enumerate((L, 4)):
        for i in range(L):
            for j in range(L):
                near = i - window < j <= i if causal else i - window // 2 <= j <= i + (window - 1) // 2
                seen = j < real and (near or i < first or j < first) and not (causal and j > i)
                assert bool(allowed[b, 0, i, j]) == seen, (b, i, j)


def each_row(transform: Transform, **kind: bool) -> Any:
    """Every row of weights with its scores, and how often it sees each key."""
    keys, given = keys_of(**kind), scores()
    found, visible = transform(given, keys), keys.visible().expand(B, H, L, L)
    counts = torch.ones(B, L).double() if keys.counts is None else keys.counts
    for b in range(B):
        for h in range(H):
            for i in range(L):
                seen = [float(counts[b, j]) if bool(visible[b, h, i, j]) else 0.0 for j in range(L)]
                yield h, given[b, h, i].tolist(), seen, found[b, h, i].tolist()


KINDS = [{}, {"causal": True}, {"counts": True}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_sink_takes_its_part_of_the_softmax(kind: dict[str, bool]) -> None:
    transform = SinkSoftmax(SinkOptions(start=0.5), H).double()
    with torch.no_grad():
        transform.sinks.add_(torch.tensor([0.0, 1.0, -3.0]))
    for h, row, seen, found in each_row(transform, **kind):
        sink = (0.5, 1.5, -2.5)[h]
        total = math.exp(sink) + sum(count * math.exp(score) for score, count in zip(row, seen, strict=True))
        expected = [count * math.exp(score) / total for score, count in zip(row, seen, strict=True)]
        assert found == pytest.approx(expected, abs=1e-12) and sum(found) < 1


def test_large_scores_and_sinks_are_finite() -> None:
    for start, large in ((1e4, 1.0), (-1e4, 1.0), (0.0, 1e4)):
        transform = SinkSoftmax(SinkOptions(start=start), H)
        given = (scores() * large).float().requires_grad_()
        found = transform(given, keys_of())
        (gradient,) = torch.autograd.grad(found.square().sum(), given)
        assert bool(found.isfinite().all()) and bool(gradient.isfinite().all())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_weight_of_sigmoid_attention_depends_on_its_own_score(kind: dict[str, bool]) -> None:
    transform = SigmoidAttention(H).double()
    with torch.no_grad():
        transform.bias.add_(torch.tensor([0.0, 1.0, -1.0]))
    for h, row, seen, found in each_row(transform, **kind):
        bias = (0.0, 1.0, -1.0)[h] - math.log(max(sum(seen), 1))
        expected = [count / (1 + math.exp(-score - bias)) for score, count in zip(row, seen, strict=True)]
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("keep", [0.01, 0.3, 0.5, 1.0])
def test_the_largest_norms_are_kept(keep: float) -> None:
    rng = torch.Generator().manual_seed(3)
    states, valid = torch.randn(2, 6, 4, generator=rng), torch.arange(6) < torch.tensor([[6], [3]])
    states[0, 1] = states[0, 4]  # equal norms stay or go together
    unnormed = states * torch.tensor([1.0, 5, 2, 4, 5, 3])[:, None]
    memory = Memory(states, valid, torch.arange(6).expand(2, -1), unnormed=unnormed)
    found = NormQuantile(NormQuantileOptions(keep=keep))(memory).values
    for b, real in enumerate((6, 3)):
        norms = [math.sqrt(sum(x * x for x in unnormed[b, i].tolist())) for i in range(real)]
        least = sorted(norms, reverse=True)[math.ceil(keep * real) - 1]
        expected = [float(norm >= least - 1e-6) for norm in norms] + [0.0] * (6 - real)
        assert found[b].tolist() == expected


def test_a_stand_in_counts_as_often_as_it_stands_for_positions() -> None:
    states = torch.tensor([[[0.0], [3.0], [2.0], [1.0]]])
    memory = Memory(
        states, torch.ones(1, 4, dtype=torch.bool), torch.tensor([[-1, 0, 1, 2]]), torch.tensor([[5.0, 1, 1, 1]])
    )
    for keep, expected in ((0.25, [0.0, 1, 1, 0]), (0.3, [0.0, 1, 1, 1]), (0.5, [1.0, 1, 1, 1])):
        assert NormQuantile(NormQuantileOptions(keep=keep))(memory).values.tolist() == [expected]


FAST = ["build", "reach", "counts", "weights", "compaction"]


@pytest.mark.parametrize(
    "rules", [FAST, pytest.param([rule.name for rule in RULES], marks=pytest.mark.thorough)], ids=["some", "all"]
)
@pytest.mark.parametrize(
    "method", ["pattern.longformer", "transform.softmax_sink", "transform.sigmoid", "memory.norm_quantile"]
)
def test_the_rules_hold_alone_and_with_entmax_and_l0drop(method: str, rules: list[str]) -> None:
    with registered():
        others = [registry.get("transform", "entmax15"), registry.get("memory", "l0drop")]
        found = check_method(method, rules=rules, others=others)
    assert found.holds, [(each.rule.name, each.message, each.script) for each in found.broken]
