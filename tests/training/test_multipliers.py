"""Weights of auxiliary losses: what a target does to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsenmt.recipe.auxiliary_loss import AuxiliaryLoss, Ramp
from sparsenmt.training.failures import open_gates_warning
from sparsenmt.training.gradients import BatchResult, UpdateTotals
from sparsenmt.training.schedules import (
    OpenGates,
    closed_shares,
    loss_weights,
    next_multiplier,
    update_multipliers,
)
from sparsenmt.training.state import Multiplier, Progress
from tests.training.support import read_progress


def loss_of(**values: Any) -> AuxiliaryLoss:
    return AuxiliaryLoss.model_validate(values)


def test_shares_of_closed_gates_are_shown_with_their_targets() -> None:
    values = {"a_closed": 0.381, "b_closed": 0.0}
    assert closed_shares({"a": loss_of(weight=0.3)}, values, 1) == ["closed 38.1%"]
    rising = loss_of(target=Ramp(from_=0.0, to=0.5, steps=10))
    assert closed_shares({"a": rising}, values, 4) == ["closed 38.1% (target 20%)"]
    both = {"a": loss_of(weight=0.3), "b": rising}
    assert closed_shares(both, values, 10) == ["a closed 38.1%", "b closed 0.0% (target 50%)"]
    assert closed_shares({}, {}, 10) == []


def test_weights_are_constant_or_follow_their_schedule_or_the_multiplier() -> None:
    rising = {"from": 0.0, "to": 0.2, "steps": 10, "after": 100}
    losses = {"a": loss_of(weight=0.3), "b": loss_of(weight=rising), "c": loss_of(target=0.5), "d": loss_of()}
    assert loss_weights(losses, {}, 105) == {"a": 0.3, "b": pytest.approx(0.1), "c": 0.0, "d": 1.0}
    assert loss_weights(losses, {"c": Multiplier(weight=0.7)}, 0)["c"] == 0.7


def test_one_step_of_the_controller() -> None:
    loss = loss_of(target=0.5, proportional=2.0, integral=0.1, damping=3.0, smoothing=0.75, max_weight=5.0)
    first = next_multiplier(Multiplier(), loss, 1, 0.1)
    assert first == Multiplier(weight=pytest.approx(0.04 + 0.8), integral=pytest.approx(0.04), closed=0.1)
    second = next_multiplier(first, loss, 2, 0.5)  # smoothed: 0.75 * 0.1 + 0.25 * 0.5 = 0.2
    assert second == Multiplier(weight=pytest.approx(0.07 + 0.6 - 0.3), integral=pytest.approx(0.07), closed=0.2)


def test_beyond_the_target_the_sum_falls_faster_than_it_rose() -> None:
    loss = loss_of(target=0.5, proportional=0.0, integral=0.1, release=4.0, damping=0.0, smoothing=0.0)
    state = Multiplier(weight=1.0, integral=1.0, closed=0.5)
    assert next_multiplier(state, loss, 1, 0.4).integral == pytest.approx(1.01)
    assert next_multiplier(state, loss, 1, 0.6).integral == pytest.approx(0.96)


def test_the_weight_stays_in_its_limits_and_comes_down_at_once() -> None:
    """Nothing winds up while the gates lag behind."""
    loss = loss_of(target=0.5, proportional=1.0, integral=0.5, release=1.0, damping=0.0, smoothing=0.0, max_weight=1.0)
    state = Multiplier()
    for update in range(100):
        state = next_multiplier(state, loss, update, 0.0)
    assert state.weight == state.integral == 1.0
    for update in range(100, 104):
        state = next_multiplier(state, loss, update, 0.9)
    assert state.weight == pytest.approx(0.2 - 0.4) and state.integral == pytest.approx(0.2)
    for update in range(104, 150):
        state = next_multiplier(state, loss, update, 0.9)
    assert state.integral == 0.0 and state.weight == pytest.approx(-0.4)
    for update in range(150, 153):
        state = next_multiplier(state, loss_of(target=0.0, proportional=9.0, max_weight=1.0), update, 0.9)
    assert state.weight == -1.0


def test_a_simple_plant_is_driven_to_the_target_and_held() -> None:
    """A plant whose closed share lags behind what the weight asks for, as gates do."""
    loss = loss_of(target={"from": 0.0, "to": 0.45, "steps": 200})
    state, closed = Multiplier(), 0.0
    for update in range(3000):
        state = next_multiplier(state, loss, update, closed)
        asked = state.weight / (state.weight + 0.2)  # more weight closes more, with diminishing returns
        closed += 0.02 * (asked - closed)
    assert closed == pytest.approx(0.45, abs=0.005)


class Gates:
    """Gates as an optimizer with momentum moves them: many at nearly one height, so that they fall together."""

    def __init__(self, *, need: float, step: float, spread: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = 2.0 + spread * torch.randn(2000, generator=generator)
        self.worth = need * torch.rand(2000, generator=generator)  # what the likelihood pulls each one up with
        self.step, self.momentum = step, torch.zeros(2000)

    def closed(self) -> float:
        return float((self.logits < -2.4).float().mean())

    def update(self, weight: float) -> None:
        open_ = torch.sigmoid(self.logits + 1.6)
        seen = (self.logits > -2.4).float()  # a closed gate's output does not depend on its logit
        gradient = weight * open_ * (1 - open_) - seen * self.worth * open_ * (1 - open_)
        self.momentum = 0.9 * self.momentum + 0.1 * gradient / gradient.abs().mean().clamp_min(1e-6)
        self.logits = self.logits - self.step * self.momentum


@pytest.mark.parametrize("step", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("need", [0.5, 2.0])
def test_gates_that_fall_together_do_not_stay_closed(step: float, need: float) -> None:
    """Whatever the speed at which gates move, the share ends at the target, also when it was far beyond it once."""
    gates, state = Gates(need=need, step=step, spread=0.3), Multiplier()
    loss = loss_of(target=0.46)
    shares = []
    for update in range(1500):
        state = next_multiplier(state, loss, update, gates.closed())
        gates.update(state.weight)
        shares.append(gates.closed())
    assert sum(shares[-200:]) / 200 == pytest.approx(0.46, abs=0.02), shares[::100]


def test_what_the_log_says() -> None:
    progress = Progress(update=1)
    result = BatchResult(1.0, 2.0, {"l0": 0.8}, {"l0": 0.25}, {"l0": 0.5})
    totals = UpdateTotals(target_tokens=50, source_tokens=40, sentences=4)
    found = update_multipliers({"l0": loss_of(target=0.5)}, progress, result, totals)
    assert found == {"l0_weight": 0.0, "l0_closed": 0.25, "l0_partial": 0.5, "l0_open_per_sentence": 7.5}
    assert progress.multipliers["l0"].closed == 0.25 and progress.multipliers["l0"].weight > 0


def test_the_log_of_a_filter_without_a_loss() -> None:
    progress, totals = Progress(update=1), UpdateTotals(target_tokens=50, source_tokens=40, sentences=4)
    result = BatchResult(1.0, 2.0, {"l0": 0.8}, {"l0": 0.25, "freq": 0.5}, {"l0": 0.5, "freq": 0.0})
    losses = {"l0": loss_of(weight=0.3)}
    found = update_multipliers(losses, progress, result, totals)
    assert {name: value for name, value in found.items() if "freq" in name} == {
        **{"freq_closed": 0.5, "freq_partial": 0.0, "freq_open_per_sentence": 5.0},
    }
    assert found["l0_closed"] == 0.25 and not progress.multipliers
    assert closed_shares(losses, found, 1) == ["l0 closed 25.0%", "freq closed 50.0%"]
    alone = {name: value for name, value in found.items() if "freq" in name}
    assert closed_shares({}, alone, 1) == ["closed 50.0%"]


def test_multipliers_survive_a_checkpoint() -> None:
    progress = Progress(update=5, multipliers={"l0": Multiplier(0.1 + 0.2, 1 / 3, 0.7)})
    assert read_progress(progress.to_json()) == progress


def test_gates_that_stay_open_are_named_once() -> None:
    """Only where a target wants some closed, and only if all are exactly 1 all the time."""
    losses = {
        "a": loss_of(target=0.4),
        "b": loss_of(weight=0.3),
        "c": loss_of(target=Ramp(from_=0.0, to=0.5, steps=20)),
    }
    stuck = {f"{name}_{part}": 0.0 for name in losses for part in ("closed", "partial")}
    gates, found = OpenGates(), {}
    for update in range(1, 3 * OpenGates.PATIENCE):
        moving = {"a_partial": 0.01} if update == 10 else {}
        for name in gates.notice(losses, stuck | moving, update):
            assert name not in found
            found[name] = update
    assert found == {
        "a": 10 + OpenGates.PATIENCE,
        "c": OpenGates.PATIENCE,
    }  # c: from the first update with target > 0.02
    assert gates.notice({"d": loss_of(target=0.4)}, {}, 1) == []
    message = open_gates_warning("a", 50, ["start"])
    assert "'a'" in message and "(start of model.memory)" in message and "losses.a.max_weight" in message
