"""Gradients of an update equal autograd of the plain definition, however the update is cut into batches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from sparsenmt.data.batching import Batch
from sparsenmt.model.protocol import Decided, Encoded, GateShares
from sparsenmt.model.transformer import Transformer
from sparsenmt.training import loss
from sparsenmt.training.gradients import BatchResult, Objective, UpdateTotals, accumulate_gradients
from sparsenmt.training.precision import MasterWeights
from tests.training.support import EXITS, PLAIN, gradients, make_batch, naive_loss, pairs, small_model

AUXILIARY = {"open": 0.7, "mass": 0.05}
Normalization = Literal["tokens", "sentences"]


def accumulated(
    model: Transformer, batches: Sequence[Batch], objective: Objective
) -> tuple[list[BatchResult], dict[str, Tensor]]:
    model.zero_grad()
    totals = UpdateTotals.of(batches)
    results = [accumulate_gradients(model, batch, objective, totals) for batch in batches]
    return results, gradients(model)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-9, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("normalization", ["tokens", "sentences"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("plan", "filtered"), [(PLAIN, False), (EXITS, False), (PLAIN, True), (EXITS, True)])
def test_equals_autograd_of_the_definition(
    plan: object, filtered: bool, smoothing: float, normalization: Normalization
) -> None:
    model = small_model(plan=plan, filtered=filtered)  # type: ignore[arg-type]
    objective = Objective(smoothing, normalization, AUXILIARY)
    batches = [make_batch(pairs(5, 1)), make_batch(pairs(2, 2, longest=3))]
    expected_loss = naive_loss(model, batches, objective)
    model.zero_grad()
    expected_loss.backward()
    expected = gradients(model)
    results, found = accumulated(model, batches, objective)
    assert_equal(found, expected)
    assert sum(result.loss for result in results) == pytest.approx(float(expected_loss.detach()), rel=1e-9)
    if filtered:
        assert all(abs(found["memory.output.0.direction"]) > 0)


@pytest.mark.parametrize("normalization", ["tokens", "sentences"])
@pytest.mark.parametrize("plan", [PLAIN, EXITS])
def test_micro_batches_do_not_matter(plan: object, normalization: Normalization) -> None:
    model = small_model(plan=plan, filtered=True)  # type: ignore[arg-type]
    objective = Objective(0.1, normalization, AUXILIARY)
    rows = pairs(9, 3)
    whole, expected = accumulated(model, [make_batch(rows)], objective)
    for cuts in ([4], [1, 2], [1, 2, 3, 4, 5, 6, 7, 8]):
        spans = itertools.pairwise([0, *cuts, len(rows)])
        results, found = accumulated(model, [make_batch(rows[a:b]) for a, b in spans], objective)
        assert_equal(found, expected)
        for field in ("loss", "nll"):
            assert sum(getattr(r, field) for r in results) == pytest.approx(getattr(whole[0], field), rel=1e-9)
        for name in AUXILIARY:
            assert sum(r.auxiliary[name] for r in results) == pytest.approx(whole[0].auxiliary[name], rel=1e-9)


@pytest.mark.parametrize("normalization", ["tokens", "sentences"])
def test_shares_are_of_the_positions_of_an_update_whatever_normalises_the_loss(normalization: Normalization) -> None:
    """A long sentence without a closed gate beside short ones whose gates are closed."""
    model = small_model(filtered=True)
    lengths, closed = {1: 9, 2: 2, 3: 3}, {1: 0.0, 2: 1.0, 3: 1.0}
    batches = [make_batch([([5] * (n - 1), [6, 7])]) for n in lengths.values()]
    shares = iter(closed.values())

    class Told(Transformer):
        """Shares as given, whatever the gates."""

        def encode(self, *args: Any, **keys: Any) -> Encoded:
            encoded = super().encode(*args, **keys)
            share = torch.tensor([next(shares)], dtype=torch.float64)
            told = {name: GateShares(share, 1 - share) for name in AUXILIARY}
            decided = {n: Decided(each.losses, told) for n, each in encoded.decided.items()}
            return Encoded(encoded.memories, decided)

    model.__class__ = Told
    results, _ = accumulated(model, batches, Objective(0.0, normalization, AUXILIARY))
    for name in AUXILIARY:
        assert sum(result.closed[name] for result in results) == pytest.approx(5 / 14)
        assert sum(result.partial[name] for result in results) == pytest.approx(9 / 14)


@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_chunks_of_the_projection_do_not_matter(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, objective, batch = small_model(plan=EXITS), Objective(0.1, "tokens", {}), make_batch(pairs(6, 4))
    expected_results, expected = accumulated(model, [batch], objective)
    monkeypatch.setattr(loss, "CHUNK_ROWS", rows)
    results, found = accumulated(model, [batch], objective)
    assert_equal(found, expected)
    assert results[0].loss == pytest.approx(expected_results[0].loss, rel=1e-12)


def test_weights_of_an_update_sum_to_one() -> None:
    batches = [make_batch(pairs(5, 1)), make_batch(pairs(2, 2, longest=3))]
    totals = UpdateTotals.of(batches)
    for normalization in ("tokens", "sentences"):
        objective = Objective(0.0, normalization, {})  # type: ignore[arg-type]
        tokens = sum(float(objective.token_weights(batch.target_valid, totals).sum()) for batch in batches)
        sentences = sum(float(objective.sentence_weights(batch.source_valid, totals).sum()) for batch in batches)
        assert (tokens, sentences) == (pytest.approx(1.0), pytest.approx(1.0))


def test_a_weight_of_zero_switches_a_loss_off_but_still_reports_it() -> None:
    model, batch = small_model(filtered=True), make_batch(pairs(3, 5))
    results, off = accumulated(model, [batch], Objective(0.0, "tokens", {"open": 0.0, "mass": 0.0}))
    assert all(value > 0 for value in results[0].auxiliary.values())
    assert results[0].loss == pytest.approx(results[0].nll / batch.target_tokens)
    _, on = accumulated(model, [batch], Objective(0.0, "tokens", {"open": 1.0, "mass": 0.0}))
    assert not torch.equal(off["memory.output.0.direction"], on["memory.output.0.direction"])


def test_nll_is_a_sum_over_tokens_and_a_mean_over_exits() -> None:
    model, batch = small_model(plan=EXITS), make_batch(pairs(4, 6))
    results, _ = accumulated(model, [batch], Objective(0.2, "sentences", {}))
    expected = naive_loss(model, [batch], Objective(0.0, "tokens", {})) * batch.target_tokens
    assert results[0].nll == pytest.approx(float(expected.detach()), rel=1e-9)


def test_bf16_gradients_are_near_those_of_fp32() -> None:
    objective, batches = Objective(0.1, "tokens", AUXILIARY), [make_batch(pairs(6, 7)), make_batch(pairs(3, 8))]
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = small_model(filtered=True, dtype=torch.float32)
        weights = MasterWeights(model, dtype)
        for batch in batches:
            accumulate_gradients(model, batch, objective, UpdateTotals.of(batches))
            weights.collect()
        found[dtype] = torch.cat([p.grad.flatten() for p in weights.named.values() if p.grad is not None])
    assert found[torch.bfloat16].dtype == torch.float32
    cosine = torch.cosine_similarity(found[torch.float32], found[torch.bfloat16], dim=0)
    assert cosine > 0.99
