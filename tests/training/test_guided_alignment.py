"""Guided alignment: its gradient is autograd's of the definition; batches, exits, sparse transforms, learning."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.data.batching import Batch
from sparsenmt.model.attention import AttentionStep, record_cross_head
from sparsenmt.model.protocol import AttentionSeen, Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.sparsity.entmax15 import Entmax15
from sparsenmt.sparsity.sparsemax import Sparsemax
from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients, read_losses
from sparsenmt.training.guided_alignment import NAME, GuidedHead
from tests.training.support import EXITS, PLAIN, gradients, make_batch, naive_loss, pairs, small_model

OBJECTIVE = Objective(0.1, "tokens", {})
LAYER, HEAD, WEIGHT = 2, 1, 0.3


def linked(seed: int, count: int) -> Batch:
    """A batch whose pairs have links; of each second target token none."""
    batch = make_batch(pairs(count, seed))
    generator = torch.Generator().manual_seed(seed)
    found = []
    for row in range(count):
        sizes = int(batch.target_valid[row].sum()) - 1, int(batch.source_valid[row].sum()) - 1
        for t in range(0, sizes[0], 2):
            places = torch.randperm(sizes[1], generator=generator)[:2].tolist()
            found += [(row, t, s) for s in places]
    return replace(batch, links=torch.tensor(found).T)


def plain_loss(model: Transformer, batches: list[Batch], *, exits: int = 1) -> Tensor:
    """The mean over all target tokens of the cross-entropy of links and attention, as the papers write it."""
    total = sum(batch.target_tokens for batch in batches)
    losses = []
    for batch in batches:
        seen: list[AttentionSeen] = []
        memories = model.encode(Source(batch.source, batch.source_valid), exits=model.plan.encoder_exits).memories
        with model.listen(lambda each, seen=seen: seen.append(each)):  # type: ignore[misc]
            for memory in memories.values():
                model.decode(batch.target_input, memory, exits=model.plan.decoder_exits)
        own = [each.weights[:, HEAD] for each in seen if each.site == "cross" and each.step == LAYER - 1]
        assert batch.links is not None and len(own) == exits
        for weights in own:
            for row in range(len(batch.source)):
                for t in {int(each[1]) for each in batch.links.T if each[0] == row}:
                    places = [int(s) for b, j, s in batch.links.T if b == row and j == t]
                    losses.append(-sum(weights[row, t, s].log() for s in places) / len(places) / total / len(own))
    return torch.stack(losses).sum()


def guided(model: Transformer, batches: list[Batch]) -> tuple[float, float, dict[str, Tensor]]:
    """Loss, logged value and gradients of an update."""
    model.zero_grad()
    head = GuidedHead(record_cross_head(model.modules(), LAYER, HEAD), WEIGHT)
    totals = UpdateTotals.of(batches)
    results = [accumulate_gradients(model, batch, OBJECTIVE, totals, head) for batch in batches]
    told, _ = read_losses(results, torch.zeros(0))
    return sum(each.loss for each in told), sum(each.auxiliary[NAME] for each in told), gradients(model)


@pytest.mark.parametrize(("plan", "exits"), [(PLAIN, 1), (EXITS, 2)])
def test_loss_and_gradients_are_autograds_of_the_definition(plan: Any, exits: int) -> None:
    model, batches = small_model(plan=plan), [linked(1, 4), linked(2, 3)]
    model.train()
    expected = plain_loss(model, batches, exits=exits)
    whole = naive_loss(model, batches, OBJECTIVE) + WEIGHT * expected
    model.zero_grad()
    whole.backward()
    wanted = gradients(model)
    loss, value, found = guided(model, batches)
    assert value == pytest.approx(float(expected.detach()), rel=1e-9)
    assert loss == pytest.approx(float(whole.detach()), rel=1e-9)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("transform", [Sparsemax, Entmax15])
def test_the_gradient_reaches_links_whose_weight_is_zero(transform: Any) -> None:
    model = small_model(transform=transform)
    model.train()
    batch = linked(3, 5)
    recorder = record_cross_head(model.modules(), LAYER, HEAD)
    memory = model.encode(Source(batch.source, batch.source_valid)).memory
    model.decode(batch.target_input, memory)
    scores, weights, seen = recorder.take() or (torch.empty(0),) * 3
    recorder._last = scores, weights, seen
    token_weights = batch.target_valid / batch.target_tokens
    assert batch.links is not None
    found = GuidedHead(recorder, 1.0).loss(batch.links, token_weights)
    assert found is not None and math.isfinite(float(found.value))
    (gradient,) = torch.autograd.grad(found.surrogate, scores)
    links = batch.links.T.tolist()
    assert any(weights[b, t, s] == 0 for b, t, s in links)
    for b, t, s in links:
        count = sum(each[:2] == [b, t] for each in links)
        assert float(gradient[b, t, s]) == pytest.approx((float(weights[b, t, s]) - 1 / count) / batch.target_tokens)
    for b in range(len(scores)):
        for t in range(scores.shape[1]):
            if not any(each[:2] == [b, t] for each in links):
                assert not gradient[b, t].any()


class OwnKeys:
    """Each head sees the keys whose position is not its number, from 0."""

    reach = None

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        return torch.stack([positions != head for head in (0, 1)], 1)[:, :, None, :]


def test_links_that_a_pattern_hides_are_none() -> None:
    model = small_model().double()
    (step,) = (
        each
        for each in model.modules()
        if isinstance(each, AttentionStep) and each.site == "cross" and each.step == LAYER - 1
    )
    step.pattern = OwnKeys()
    model.train()
    batch = linked(3, 5)
    assert batch.links is not None and (batch.links[2] == HEAD).any()
    shown = replace(batch, links=batch.links[:, batch.links[2] != HEAD])
    _, value, found = guided(model, [batch])
    _, wanted_value, wanted = guided(model, [shown])
    assert value == pytest.approx(wanted_value, rel=1e-12) and math.isfinite(value)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)


def test_sparsemax_gets_the_gradient_of_its_own_loss() -> None:
    scores = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    wanted = torch.zeros_like(scores)
    wanted[:, :, 1] = 1
    p = Sparsemax()(scores[:, None], keys_of(scores))[:, 0]
    omega = lambda x: (x**2).sum(-1) / 2  # noqa: E731
    fenchel_young = ((p * scores).sum(-1) - omega(p)) + omega(wanted) - (wanted * scores).sum(-1)
    (expected,) = torch.autograd.grad(fenchel_young.sum(), scores)
    torch.testing.assert_close(p.detach() - wanted, expected)


def keys_of(scores: Tensor) -> Any:
    from sparsenmt.model.sockets import Keys

    b, q, k = scores.shape
    valid = torch.ones(b, k, dtype=torch.bool)
    return Keys(valid, torch.arange(q).expand(b, -1), torch.arange(k).expand(b, -1))


def test_without_links_the_update_is_that_of_the_likelihood() -> None:
    model, batch = small_model(), make_batch(pairs(4, 1))
    model.train()
    none = replace(batch, links=torch.empty(3, 0, dtype=torch.long))
    _, value, found = guided(model, [none])
    model.zero_grad()
    accumulate_gradients(model, batch, OBJECTIVE, UpdateTotals.of([batch]))
    assert value == 0 and all(torch.equal(found[name], each) for name, each in gradients(model).items())


def test_the_head_learns_the_links() -> None:
    model, batch = small_model(dtype=torch.float32), linked(4, 6)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    head = GuidedHead(record_cross_head(model.modules(), LAYER, HEAD), 1.0)
    values = []
    for _ in range(40):
        optimizer.zero_grad()
        result = accumulate_gradients(model, batch, OBJECTIVE, UpdateTotals.of([batch]), head)
        values.append(result.auxiliary[NAME])
        optimizer.step()
    assert values[-1] < 0.6 * values[0]
