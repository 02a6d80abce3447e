"""Attention by distance against loops that are written from the papers, forward and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.model.relative_attention import DistanceSockets, attend_by_distance
from sparsenmt.model.sockets import Keys, ScoreTerm, Span, Transform
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.adaptive_span import AdaptiveSpan
from sparsenmt.sparsity.distance_buckets import DistanceBuckets
from sparsenmt.sparsity.distance_vectors import DistanceVectors
from sparsenmt.sparsity.registry import MethodPlace
from sparsenmt.sparsity.topk import TopK
from sparsenmt.sparsity.transformer_xl import RelativePositions
from tests.model.support import assert_same_function

HEADS, SIZE, DIMENSION = 2, 3, 8
CASES = {  # queries, keys: a text, its continuation after a memory, one step, more keys than a block of a band
    "text": (7, 7),
    "segment after a memory": (5, 11),
    "one step": (1, 9),
    "bands": (150, 230),
}


def term_of(name: str, site: str = "decoder_self", **options: Any) -> ScoreTerm:
    method = registry.get("position", name)
    sizes = {"heads": HEADS, "size": SIZE, "dimension": DIMENSION, "place": MethodPlace(0, 0, {})}
    term: ScoreTerm = method.build(method.options.model_validate(options), site=site, **sizes)
    return term.double()


def span_of(*spans: float, maximum: int = 60, ramp: int = 4, mask: str = "scores", own: bool = True) -> Span:
    method = registry.get("span", "adaptive_span")
    options = method.options.model_validate({"maximum": maximum, "ramp": ramp, "mask": mask, "own": own})
    span: Span = method.build(options, site="decoder_self", heads=len(spans)).double()
    assert isinstance(span, AdaptiveSpan)
    with torch.no_grad():
        span.share.copy_(torch.tensor(spans, dtype=torch.float64) / maximum)
    return span


def softmax() -> Transform:
    method = registry.get("transform", "softmax")
    transform: Transform = method.build(method.options(), site="decoder_self", heads=HEADS)
    return transform


def sinusoid(distance: int) -> Tensor:
    """R of Dai et al. 2019: the sines, then the cosines, of the distance at falling frequencies."""
    angles = [distance / 10000 ** (i / DIMENSION) for i in range(0, DIMENSION, 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def relative_score(term: ScoreTerm, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    assert isinstance(term, RelativePositions)
    u, v = term.biases.content[head, 0], term.biases.distance[head, 0]
    w = term.weight[head * SIZE : (head + 1) * SIZE]
    return ((q + u) @ k + (q + v) @ (w @ sinusoid(distance))) / math.sqrt(SIZE)


def vector_score(term: ScoreTerm, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    assert isinstance(term, DistanceVectors)
    return (q @ k + q @ term.weight[min(distance, len(term.weight) - 1)]) / math.sqrt(SIZE)


def bucket(distance: int, buckets: int, maximum: int) -> int:
    """The bucket of a distance to the left (Raffel et al. 2020, section 2.1): half of them have one distance each."""
    exact = buckets // 2
    if distance < exact:
        return distance
    ends = [exact * (maximum / exact) ** (n / (buckets - exact)) for n in range(1, buckets - exact)]
    return exact + sum(distance >= end - 1e-9 for end in ends)


def bucket_score(term: ScoreTerm, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    assert isinstance(term, DistanceBuckets)
    return (q @ k + term.weight[bucket(distance, 8, 30), head]) / math.sqrt(SIZE)


def plain_score(term: None, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    return (q @ k) / math.sqrt(SIZE)


SCORES: dict[str, tuple[Callable[..., Tensor], Callable[[], ScoreTerm | None]]] = {
    "transformer_xl": (relative_score, lambda: term_of("transformer_xl")),
    "distance_vectors": (vector_score, lambda: term_of("distance_vectors", maximum=6)),
    "distance_buckets": (bucket_score, lambda: term_of("distance_buckets", buckets=8, maximum=30)),
    "none": (plain_score, lambda: None),
}


def factor(span: float, distance: int, *, maximum: int = 60, ramp: int = 4) -> float:
    """Equation 2 of Sukhbaatar et al. 2019."""
    return min(max((ramp + span - distance) / ramp, 0.0), 1.0) if distance < maximum else 0.0


def naive(
    q: Tensor, k: Tensor, v: Tensor, score: Callable[[int, Tensor, Tensor, int], Tensor], spans: tuple[float, ...] = ()
) -> Tensor:
    """Causal attention by loops; with spans by Equation 3 of Sukhbaatar et al. 2019."""
    result = torch.zeros(q.shape, dtype=torch.float64)
    first = k.shape[2] - q.shape[2]
    for b in range(q.shape[0]):
        for h in range(HEADS):
            for i in range(q.shape[2]):
                seen = range(first + i + 1)
                values = torch.stack([score(h, q[b, h, i], k[b, h, j], first + i - j) for j in seen]).exp()
                if spans:
                    values = values * torch.tensor([factor(spans[h], first + i - j) for j in seen])
                result[b, h, i] = (values / values.sum()) @ v[b, h, : first + i + 1]
    return result


def inputs(queries: int, keys: int, rows: int = 2) -> tuple[Tensor, Tensor, Tensor, Keys]:
    generator = torch.Generator().manual_seed(1)

    def draw(length: int) -> Tensor:
        return torch.randn(rows, HEADS, length, SIZE, dtype=torch.float64, generator=generator).requires_grad_()

    positions = torch.arange(keys).expand(rows, -1)
    known = Keys(torch.ones(1, keys, dtype=torch.bool).expand(rows, -1), positions[:, -queries:], positions)
    return draw(queries), draw(keys), draw(keys), known


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("case", ["text", "segment after a memory", "one step"])
def test_scores_by_distance_equal_loops(kind: str, case: str) -> None:
    score, make = SCORES[kind]
    term, (q, k, v, keys) = make(), inputs(*CASES[case])
    expected = naive(q, k, v, lambda *given: score(term, *given))
    sockets = DistanceSockets(softmax(), None, term, None, causal=True)
    leaves = [q, k, v, *(term.parameters() if term is not None else ())]
    assert_same_function(attend_by_distance(q, k, v, keys, sockets, 0.0), expected, leaves)


@pytest.mark.parametrize("mask", ["scores", "weights"])
@pytest.mark.parametrize("case", ["text", "segment after a memory", "one step"])
def test_spans_equal_loops(case: str, mask: str) -> None:
    spans, (q, k, v, keys) = (1.5, 4.0), inputs(*CASES[case])
    expected = naive(q, k, v, lambda *given: plain_score(None, *given), spans)
    sockets = DistanceSockets(softmax(), None, None, span_of(*spans, mask=mask), causal=True)
    assert_same_function(attend_by_distance(q, k, v, keys, sockets, 0.0), expected, [q, k, v])


def test_the_gradient_of_a_span_is_that_of_its_difference_quotient() -> None:
    q, k, v, keys = inputs(*CASES["segment after a memory"])
    direction = torch.randn(q.shape, dtype=torch.float64)

    def value(span: Span) -> Tensor:
        sockets = DistanceSockets(softmax(), None, None, span, causal=True)
        return (attend_by_distance(q, k, v, keys, sockets, 0.0) * direction).sum()

    span, step = span_of(1.3, 2.6), 1e-6
    (gradient,) = torch.autograd.grad(value(span), list(span.parameters()))
    for head in range(HEADS):
        moved = [span_of(*(z + sign * step * 60 * (h == head) for h, z in enumerate((1.3, 2.6)))) for sign in (1, -1)]
        quotient = float(value(moved[0]).detach() - value(moved[1]).detach()) / (2 * step)
        assert float(gradient[head]) == pytest.approx(quotient, rel=1e-5)


def reference_top_k(weights: Tensor, k: int) -> Tensor:
    """The authors' order: after softmax and span, what is below the k-th largest becomes 0; then normalised."""
    threshold = weights.topk(min(k, weights.shape[-1]), -1).values[..., -1:]
    kept = torch.where(weights >= threshold, weights, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def test_top_k_with_a_mask_of_scores_keeps_the_largest_weights_within_the_span() -> None:
    spans, (q, k, v, keys) = (2.5, 6.0), inputs(5, 11)
    sockets = DistanceSockets(TopK(3), None, None, span_of(*spans), causal=True)
    scores = q @ k.transpose(-1, -2) / math.sqrt(SIZE)
    distance = torch.arange(6, 11)[:, None] - torch.arange(11)
    factors = torch.tensor([[[factor(z, int(d)) * (d >= 0) for d in row] for row in distance] for z in spans])
    weights = scores.masked_fill(distance < 0, -math.inf).softmax(-1) * factors
    expected = reference_top_k(weights / (weights.sum(-1, keepdim=True) + 1e-300), 3) @ v
    assert_same_function(attend_by_distance(q, k, v, keys, sockets, 0.0), expected, [q, k, v])


def test_top_k_with_a_mask_of_weights_keeps_the_largest_scores_of_keys_within_reach() -> None:
    spans, (q, k, v, keys) = (2.5, 6.0), inputs(5, 11)
    sockets = DistanceSockets(TopK(3), None, None, span_of(*spans, mask="weights"), causal=True)
    distance = torch.arange(6, 11)[:, None] - torch.arange(11)
    factors = torch.tensor([[[factor(z, int(d)) * (d >= 0) for d in row] for row in distance] for z in spans])
    scores = (q @ k.transpose(-1, -2) / math.sqrt(SIZE)).masked_fill(factors == 0, -math.inf)
    kept = scores.masked_fill(scores < scores.topk(3, -1).values[..., -1:], -math.inf).softmax(-1) * factors
    expected = (kept / kept.sum(-1, keepdim=True)) @ v
    assert_same_function(attend_by_distance(q, k, v, keys, sockets, 0.0), expected, [q, k, v])


@pytest.mark.parametrize("mask", ["scores", "weights"])
@pytest.mark.parametrize("case", ["text", "segment after a memory", "one step"])
@pytest.mark.parametrize("maximum", [60, 5])
def test_a_span_without_the_own_position_begins_at_the_one_before(maximum: int, case: str, mask: str) -> None:
    spans, (q, k, v, keys) = (1.5, 4.0), inputs(*CASES[case])
    expected = torch.zeros(q.shape, dtype=torch.float64)
    first = k.shape[2] - q.shape[2]
    for b in range(q.shape[0]):
        for h in range(HEADS):
            for i in range(q.shape[2]):
                before = range(first + i - 1, -1, -1)  # the nearest has the place 0 of Equation 2
                values = [
                    factor(spans[h], place, maximum=maximum) * (q[b, h, i] @ k[b, h, j] / math.sqrt(SIZE)).exp()
                    for place, j in enumerate(before)
                ]
                if values:  # the first position of a text sees nothing
                    expected[b, h, i] = torch.stack(values) @ v[b, h, list(before)] / sum(values)
    span = span_of(*spans, maximum=maximum, mask=mask, own=False)
    sockets = DistanceSockets(softmax(), None, None, span, causal=True)
    assert span.reach == min(4 + 4, maximum)
    assert_same_function(attend_by_distance(q, k, v, keys, sockets, 0.0), expected, [q, k, v])


def test_clamped_distances_of_an_evaluation_and_none_in_training() -> None:
    term, (q, k, v, keys) = term_of("transformer_xl", evaluation_clamp=4), inputs(*CASES["segment after a memory"])
    sockets = DistanceSockets(softmax(), None, term, None, causal=True)
    for training, farthest in ((True, 100), (False, 4)):
        term.train(training)
        expected = naive(q, k, v, lambda h, q, k, d, most=farthest: relative_score(term, h, q, k, min(d, most)))
        found = attend_by_distance(q, k, v, keys, sockets, 0.0)
        assert_same_function(found, expected, [q, k, v, *term.parameters()])
        with torch.no_grad():  # the vectors that evaluation keeps
            torch.testing.assert_close(attend_by_distance(q, k, v, keys, sockets, 0.0), expected)


def test_vectors_of_distances_begin_with_a_deviation() -> None:
    for options, wanted in (({}, SIZE**-0.5), ({"deviation": 1.0}, 1.0)):
        torch.manual_seed(1)
        term = term_of("distance_vectors", maximum=4000, **options)
        assert isinstance(term, DistanceVectors)
        assert float(term.weight.detach().std()) == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("mask", ["scores", "weights"])
def test_keys_that_are_not_computed_equal_keys_that_are_masked(kind: str, mask: str, own: bool) -> None:
    term, span, (q, k, v, keys) = SCORES[kind][1](), span_of(3.0, 9.0, mask=mask, own=own), inputs(*CASES["bands"])
    sockets = DistanceSockets(softmax(), None, term, span, causal=True)
    masked = DistanceSockets(softmax(), None, term, span, causal=True, banded=False)
    leaves = [q, k, v, *span.parameters(), *(term.parameters() if term is not None else ())]
    found, expected = (attend_by_distance(q, k, v, keys, each, 0.0) for each in (sockets, masked))
    assert_same_function(found, expected, leaves)


def test_bands_read_only_the_keys_in_reach() -> None:
    q, k, v, keys = inputs(*CASES["bands"])
    sockets = DistanceSockets(softmax(), None, None, span_of(3.0, 9.0), causal=True)
    hidden = k.detach().clone()
    hidden[:, :, : 230 - 150 - 12] = math.nan  # reach: 9 + 4 - 1
    assert bool(attend_by_distance(q, hidden, v, keys, sockets, 0.0).isfinite().all())


@pytest.mark.parametrize("kind", ["transformer_xl", "distance_vectors", "distance_buckets"])
def test_later_keys_have_negative_distances(kind: str) -> None:
    options = {"distance_vectors": {"maximum": 4}, "distance_buckets": {"buckets": 8, "maximum": 5}}.get(kind, {})
    term, (q, k, v, keys) = term_of(kind, "encoder_self", **options), inputs(6, 6, rows=1)
    sockets = DistanceSockets(softmax(), None, term, None, causal=False)

    def score(h: int, query: Tensor, key: Tensor, distance: int) -> Tensor:
        if isinstance(term, DistanceVectors):
            row = term.weight[min(max(distance, -3), 3) + 3]
            return (query @ key + query @ row) / math.sqrt(SIZE)
        if isinstance(term, DistanceBuckets):
            row = 4 * (distance < 0) + bucket(abs(distance), 4, 5)
            return (query @ key + term.weight[row, h]) / math.sqrt(SIZE)
        return relative_score(term, h, query, key, distance)

    expected = torch.zeros(1, HEADS, 6, SIZE, dtype=torch.float64)
    for h in range(HEADS):
        for i in range(6):
            values = torch.stack([score(h, q[0, h, i], k[0, h, j], i - j) for j in range(6)])
            expected[0, h, i] = values.softmax(0) @ v[0, h]
    assert_same_function(attend_by_distance(q, k, v, keys, sockets, 0.0), expected, [q, k, v, *term.parameters()])
