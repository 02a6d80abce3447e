"""Schedules against their closed forms."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from sparsenmt.recipe.auxiliary_loss import Ramp
from sparsenmt.recipe.schema import Training
from sparsenmt.training import schedules
from sparsenmt.training.schedules import final_value, value_at

Schedule = Literal["inverse_sqrt", "linear", "cosine", "constant"]


def learning_rate(update: int, *, peak: float, schedule: Schedule, warmup: int, last: int) -> float:
    options = Training(learning_rate=peak, schedule=schedule, warmup_updates=warmup, max_updates=last)
    return schedules.learning_rate(update, options)


def test_inverse_square_root_is_that_of_the_paper() -> None:
    """lrate = D^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, 5.3), with peak (D * warmup)^-0.5."""
    dimension, warmup = 512, 4000
    for update in (1, 2, 100, 3999, 4000, 4001, 16000, 100_000):
        paper = dimension**-0.5 * min(update**-0.5, update * warmup**-1.5)
        found = learning_rate(
            update, peak=(dimension * warmup) ** -0.5, schedule="inverse_sqrt", warmup=warmup, last=100_000
        )
        assert found == pytest.approx(paper)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_warm_up_is_linear_and_reaches_the_peak(schedule: Schedule) -> None:
    values = [learning_rate(u, peak=2.0, schedule=schedule, warmup=10, last=50) for u in range(1, 51)]
    assert values[:10] == pytest.approx([0.2 * u for u in range(1, 11)])
    assert max(values) == values[9] == pytest.approx(2.0)
    assert all(value > 0 for value in values)


def test_linear_falls_to_zero_after_the_last_update() -> None:
    def rate(update: int) -> float:
        return learning_rate(update, peak=1.0, schedule="linear", warmup=10, last=109)

    assert [rate(10), rate(60), rate(109), rate(110), rate(500)] == pytest.approx([1.0, 0.5, 0.01, 0.0, 0.0])


def test_cosine_is_half_a_cosine_that_ends_after_the_last_update() -> None:
    def rate(update: int) -> float:
        return learning_rate(update, peak=2.0, schedule="cosine", warmup=10, last=109)

    golden = {10: 2.0, 35: 1 + 0.5**0.5, 60: 1.0, 85: 1 - 0.5**0.5, 110: 0.0, 500: 0.0}
    assert [rate(update) for update in golden] == pytest.approx(list(golden.values()))
    assert 0 < rate(109) < 1e-3


def test_cosine_is_that_of_pytorch() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    for update in range(40):
        own = learning_rate(update, peak=0.3, schedule="cosine", warmup=0, last=39)
        assert own == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_constant_stays() -> None:
    assert {learning_rate(u, peak=0.5, schedule="constant", warmup=0, last=9) for u in range(1, 20)} == {0.5}


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_without_warm_up_or_with_one_longer_than_the_run(schedule: Schedule) -> None:
    assert 0 < learning_rate(1, peak=1.0, schedule=schedule, warmup=0, last=100) <= 1.0
    assert learning_rate(1, peak=1.0, schedule=schedule, warmup=1, last=1) == 1.0
    assert learning_rate(50, peak=1.0, schedule=schedule, warmup=100, last=50) == 0.5


def test_a_change() -> None:
    rising = Ramp(from_=1.0, to=3.0, steps=4)
    assert [value_at(rising, update) for update in range(7)] == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0, 3.0, 3.0])
    later = Ramp(from_=1.0, to=0.0, steps=4, after=10)
    assert [value_at(later, update) for update in (0, 10, 12, 14, 99)] == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert [final_value(later), final_value(0.3), value_at(0.3, 7)] == [0.0, 0.3, 0.3]
