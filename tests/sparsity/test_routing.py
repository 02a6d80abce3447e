"""Routing attention against loops, its moving averages, and the leak of the published selection."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.model.attend import restrict
from sparsenmt.model.content_attention import attend_by_content, content_weights
from sparsenmt.model.relative_attention import DistanceSockets
from sparsenmt.model.sockets import Keys, Transform, content_patterns
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import MethodPlace
from sparsenmt.sparsity.routing_transformer import Routing
from sparsenmt.sparsity.topk import TopK
from tests.model.support import assert_same_function, random_model

ROWS, HEADS, LENGTH, SIZE, LOCAL = 2, 3, 8, 4, 1
TRANSFORMS = {"softmax": {}, "topk": {"k": 2}, "entmax15": {}}


def routing(*, causal: bool = True, **options: Any) -> Routing:
    method = registry.get("pattern", "routing")
    chosen = method.options.model_validate({"clusters": 3, "local": LOCAL, "window": 2, **options})
    sizes = {"heads": HEADS, "size": SIZE, "dimension": 12, "place": MethodPlace(0, 0, {})}
    torch.manual_seed(3)
    built: Routing = method.build(chosen, site="decoder_self" if causal else "encoder_self", **sizes)
    return built.double().eval()


def transform_of(name: str) -> Transform:
    method = registry.get("transform", name)
    built: Transform = method.build(method.options.model_validate(TRANSFORMS[name]), site="decoder_self", heads=HEADS)
    return built.double()


def inputs() -> tuple[Tensor, Tensor, Tensor, Keys]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(ROWS, HEADS, LENGTH, SIZE, dtype=torch.float64, generator=generator).requires_grad_()
        for _ in range(3)
    )
    positions = torch.arange(LENGTH).expand(ROWS, -1)
    return q, k, v, Keys(torch.ones(ROWS, LENGTH, dtype=torch.bool), positions, positions)


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()


def nearest(centroids: Tensor, x: Tensor) -> int:
    """The centroid with the smallest angle."""
    return max(range(len(centroids)), key=lambda c: float(F.cosine_similarity(centroids[c], x.detach(), dim=0)))


def one_row(transform: Transform, scores: Tensor, head: int) -> Tensor:
    """Weights of one query over a few keys."""
    every = scores.new_zeros(1, HEADS, 1, len(scores))
    every[0, head, 0] = scores
    row = torch.zeros(1, len(scores), dtype=torch.long)
    weights: Tensor = transform(every, Keys(torch.ones(1, len(scores), dtype=torch.bool), row[:, :1], row))
    return weights[0, head, 0]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_nearest_assignment_equals_loops(name: str) -> None:
    content, transform, (q, k, v, keys) = routing(), transform_of(name), inputs()
    expected = torch.zeros(q.shape, dtype=torch.float64)
    for b in range(ROWS):
        for h in range(HEADS):
            for i in range(LENGTH):
                if h < LOCAL:
                    seen, query, vectors = [j for j in (i - 1, i) if j >= 0], q[b, h, i], list(k[b, h])
                else:
                    query, vectors = normalised(q[b, h, i]), [normalised(each) for each in k[b, h]]
                    centroids = content.centroids[h - LOCAL]
                    own = nearest(centroids, query)
                    seen = [j for j in range(i + 1) if nearest(centroids, vectors[j]) == own]
                if seen:
                    scores = torch.stack([query @ vectors[j] / math.sqrt(SIZE) for j in seen])
                    expected[b, h, i] = one_row(transform, scores, h) @ v[b, h, seen]
    sockets = DistanceSockets(transform, None, None, None, causal=True)
    assert_same_function(attend_by_content(q, k, v, keys, content, sockets, 0.0), expected, [q, k, v])


@pytest.mark.parametrize(("window", "causal"), [(2, True), (3, True), (3, False), (1, True)])
def test_local_heads_in_blocks_see_their_block_and_the_one_before(window: int, causal: bool) -> None:
    content, transform = routing(window=window, local_pattern="blocks", causal=causal), transform_of("softmax")
    q, k, v, keys = inputs()
    size, expected = window, torch.zeros(q[:, :LOCAL].shape, dtype=torch.float64)
    for b in range(ROWS):
        for h in range(LOCAL):
            for i in range(LENGTH):
                last = i if causal else size * (i // size + 2) - 1  # in an encoder the block after it, too
                seen = range(max(size * (i // size - 1), 0), min(last, LENGTH - 1) + 1)
                scores = torch.stack([q[b, h, i] @ k[b, h, j] / math.sqrt(SIZE) for j in seen])
                expected[b, h, i] = one_row(transform, scores, h) @ v[b, h, list(seen)]
    sockets = DistanceSockets(transform, None, None, None, causal=causal)
    context = attend_by_content(q, k, v, keys, content, sockets, 0.0)
    assert_same_function(context[:, :LOCAL], expected, [q, k, v])


@pytest.mark.parametrize("name", TRANSFORMS)
def test_balanced_assignment_equals_loops(name: str) -> None:
    content, transform, (q, k, v, keys) = routing(assignment="balanced"), transform_of(name), inputs()
    assert content.grouped and not content.decodes
    size, expected = LENGTH // 3, torch.zeros(q.shape, dtype=torch.float64)
    for b in range(ROWS):
        for h in range(LOCAL, HEADS):
            queries, vectors = ([normalised(each) for each in x[b, h]] for x in (q, k))
            outputs: list[list[Tensor]] = [[] for _ in range(LENGTH)]
            for centroid in content.centroids[h - LOCAL]:
                ranks = [
                    sorted(range(LENGTH), key=lambda n: -float(centroid @ x[n].detach()))[:size]
                    for x in (queries, vectors)
                ]
                for i in ranks[0]:
                    seen = sorted(j for j in ranks[1] if j <= i)
                    scores = [queries[i] @ vectors[j] / math.sqrt(SIZE) for j in seen]
                    zero = torch.zeros(SIZE, dtype=torch.float64)
                    outputs[i].append(one_row(transform, torch.stack(scores), h) @ v[b, h, seen] if seen else zero)
            for i, found in enumerate(outputs):
                if found:
                    expected[b, h, i] = torch.stack(found).mean(0)
    sockets = DistanceSockets(transform, None, None, None, causal=True)
    context = attend_by_content(q, k, v, keys, content, sockets, 0.0)
    assert_same_function(context[:, LOCAL:], expected[:, LOCAL:], [q, k, v])
    weights, seen_keys = content_weights(q, k, restrict(keys, None, causal=True), content, sockets)
    assert_same_function(weights @ v, attend_by_content(q, k, v, keys, content, sockets, 0.0), [q, k, v])
    assert not bool((weights > 0)[~seen_keys.visible()].any())


def test_with_nearest_assignment_later_positions_change_nothing_and_with_balanced_they_do() -> None:
    for assignment, same in (("nearest", True), ("balanced", False)):
        content, (q, k, v, keys) = routing(assignment=assignment, clusters=2), inputs()
        sockets = DistanceSockets(transform_of("softmax"), None, None, None, causal=True)
        before = attend_by_content(q, k, v, keys, content, sockets, 0.0)
        later = k.detach().clone()
        later[:, :, -3:] = torch.randn(ROWS, HEADS, 3, SIZE, dtype=torch.float64)
        after = attend_by_content(q, later, v, keys, content, sockets, 0.0)
        assert torch.equal(before[:, :, :-3], after[:, :, :-3]) == same


def test_centroids_follow_the_mean_of_their_queries_and_keys_after_an_update() -> None:
    content, (q, k, v, keys) = routing(decay=0.9, local=0), inputs()
    content.train()
    sockets, before = DistanceSockets(TopK(2), None, None, None, causal=True), content.centroids.clone()
    attend_by_content(q, k, v, keys, content, sockets, 0.0)
    content.forget()  # an update that was not finished leaves nothing
    attend_by_content(q, k, v, keys, content, sockets, 0.0)
    assert torch.equal(content.centroids, before)
    content.update()
    for h in range(HEADS):
        members: list[list[Tensor]] = [[], [], []]
        for x in (*q[:, h].flatten(0, 1), *k[:, h].flatten(0, 1)):
            members[nearest(before[h], normalised(x))].append(normalised(x.detach()))
        for c, own in enumerate(members):
            mean = F.normalize(torch.stack(own).mean(0), dim=0) if own else before[h, c]
            assert torch.allclose(content.centroids[h, c], 0.9 * before[h, c] + 0.1 * mean, atol=1e-12)


def test_a_mixed_model_has_a_number_of_local_heads_for_each_layer() -> None:
    site = {"pattern": {"name": "routing", "clusters": 2, "local": [4, 1], "window": 3}}
    model = random_model(encoder_layers=0, tie_embeddings="all", attention={"decoder_self": site})
    found = [each for each in content_patterns(model.modules()) if isinstance(each, Routing)]
    assert [tuple(each.centroids.shape) for each in found] == [(0, 2, 4), (3, 2, 4)]


@pytest.mark.parametrize(
    ("site", "key"),
    [
        ({"pattern": {"name": "routing", "local": 9}}, "pattern"),
        ({"pattern": {"name": "routing", "local": [1]}}, "pattern"),
        (
            {"pattern": {"name": "routing", "assignment": "balanced"}, "position": {"name": "transformer_xl"}},
            "position",
        ),
        ({"pattern": {"name": "routing", "assignment": "balanced"}, "transform": {"name": "entmax"}}, "transform"),
        ({"pattern": {"name": "routing", "assignment": "balanced"}, "transform": {"name": "topk_oow"}}, "transform"),
    ],
)
def test_what_has_no_meaning_is_refused(site: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as caught:
        random_model(encoder_layers=0, tie_embeddings="all", attention={"decoder_self": site})
    assert caught.value.where == f"model.attention.decoder_self.{key}"
