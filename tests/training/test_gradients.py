"""Gradients of an update equal autograd of the plain definition, however the update is cut into batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from torch import Tensor

from sparsenmt.data.batching import Batch
from sparsenmt.data.vocabulary import EOS
from sparsenmt.engine.training_operators import use_training_operators
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.model.transformer import Transformer
from sparsenmt.native import onednn
from sparsenmt.recipe.schema import AuxiliaryLoss
from sparsenmt.training import loss
from sparsenmt.training.gradients import BatchResult, Objective, UpdateTotals, accumulate_gradients, read_losses
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.schedules import update_multipliers
from sparsenmt.training.state import Progress
from tests.training.support import EXITS, PLAIN, gradients, make_batch, naive_loss, pairs, small_model

AUXILIARY = {"open": 0.7, "mass": 0.05}
Normalization = Literal["tokens", "sentences"]


def accumulated(
    model: Transformer, batches: Sequence[Batch], objective: Objective
) -> tuple[list[BatchResult], dict[str, Tensor]]:
    model.zero_grad()
    totals = UpdateTotals.of(batches)
    losses = [accumulate_gradients(model, batch, objective, totals) for batch in batches]
    return read_losses(losses, torch.zeros(0))[0], gradients(model)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("switch", ["always", "0"])
def test_compiled_kernels_give_the_gradients_of_float64(
    switch: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of products, attention, the loss and a ReLU that overwrites its input; alike without kernels."""
    monkeypatch.setenv("SPARSENMT_NATIVE", switch)
    monkeypatch.setattr(onednn, "_LEAST_WORK", 0)
    wide = small_model(plan=EXITS, dimension=32)
    own, objective = copy.deepcopy(wide).to(dtype), Objective(0.1, "tokens", {})
    use_training_operators(own, torch.device("cpu"))
    batches = [make_batch(pairs(5, 1)), make_batch(pairs(2, 2, longest=3))]
    expected, found = (accumulated(model.train(), batches, objective)[1] for model in (wide, own))
    for name in expected:
        if dtype == torch.float32:
            torch.testing.assert_close(found[name].double(), expected[name], rtol=1e-4, atol=1e-6)
        else:
            distance = (found[name].double() - expected[name]).norm()
            assert distance < 0.1 * expected[name].norm() + 1e-3, name


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


class Loaded(MemoryFilter):
    """In evaluation closes even tokens and half-opens multiples of 3; its samples are all closed, or all open."""

    def __init__(self, sample: float) -> None:
        super().__init__()
        self.sample = sample
        self.tokens: Tensor | None = None

    def forward(self, memory: Memory) -> Gates:
        assert self.tokens is not None
        evaluated = torch.where(self.tokens % 2 == 0, 0.0, torch.where(self.tokens % 3 == 0, 0.5, 1.0))
        return Gates(torch.full_like(evaluated, self.sample), "zero", {"open": evaluated.mean(1)}, evaluated)


@pytest.mark.parametrize("normalization", ["tokens", "sentences"])
@pytest.mark.parametrize("plan", [PLAIN, EXITS])
@pytest.mark.parametrize("sample", [0.0, 1.0])
def test_the_controller_is_told_positions_by_the_gates_of_evaluation(
    sample: float, plan: object, normalization: Normalization
) -> None:
    """A share of all source positions of an update, whatever is sampled, and however losses are normalised."""
    rows = [([4] * 9, [5]), ([5, 7, 9], [5, 6]), ([9], [4]), ([6, 15, 5, 8], [7] * 6)]
    model, module = small_model(plan=plan), Loaded(sample)  # type: ignore[arg-type]
    model.memory.output.append(module)
    batches = [make_batch(rows[:3]), make_batch(rows[3:])]
    results = []
    for batch in batches:
        module.tokens = batch.source
        objective = Objective(0.0, normalization, {"open": 0.1})
        results.append(accumulate_gradients(model, batch, objective, UpdateTotals.of(batches)))
    ids = [token for source, _ in rows for token in (*source, EOS)]
    closed, partial = sum(i % 2 == 0 for i in ids), sum(i % 2 != 0 and i % 3 == 0 for i in ids)
    assert sum(result.closed["open"] for result in results) == pytest.approx(closed / len(ids))
    assert sum(result.partial["open"] for result in results) == pytest.approx(partial / len(ids))
    progress, losses = Progress(update=1), {"open": AuxiliaryLoss(target=0.5, smoothing=0.0)}
    told, _ = read_losses(results, torch.zeros(0))
    total = BatchResult(0.0, 0.0, {}, {"open": sum(result.closed["open"] for result in told)}, {"open": 0.0})
    update_multipliers(losses, progress, total, UpdateTotals.of(batches))
    assert progress.multipliers["open"].closed == pytest.approx(closed / len(ids))
