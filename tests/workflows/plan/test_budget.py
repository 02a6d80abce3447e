"""Budgets as they are written on the command line."""

from __future__ import annotations

import pytest

from sparsenmt.errors import UserError
from sparsenmt.workflows.plan.budget import Budget


def test_what_is_written_is_read() -> None:
    budget = Budget.parse("bleu -0.5", "300MB", "1.5GiB", "20 ms")
    assert budget == Budget("bleu", 0.5, 300_000_000, round(1.5 * 2**30), 0.02)
    assert Budget.parse("ter +1").loss == 1 and Budget.parse("chrf -0").loss == 0
    assert Budget.parse() == Budget() and not Budget().limits


@pytest.mark.parametrize("within", ["bleu -0.5", "ter +1.25", "chrf -0"])
def test_a_budget_is_read_from_its_own_options(within: str) -> None:
    budget = Budget.parse(within, "123456789kB", "1.5GiB", "0.2ms")
    given = dict(zip(budget.options()[::2], budget.options()[1::2], strict=True))
    assert Budget.parse(*(given[f"--{name}"] for name in ("within", "memory", "size", "latency"))) == budget
    assert Budget.parse(within).options() == ["--within", within]


def test_what_exceeds_a_limit_is_named_with_its_share() -> None:
    budget = Budget(memory=100, latency=0.02)
    assert budget.excess({"memory": 150, "latency": 0.01, "size": 10**9}) == {"memory": 0.5}
    assert budget.excess({"memory": None, "latency": 0.03}) == {"latency": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"within": "bleu"}, "is not a metric and a difference"),
        ({"within": "blue -0.5"}, "'blue' is no metric"),
        ({"within": "bleu +0.5"}, "allows no loss"),
        ({"within": "ter -0.5"}, "allows no loss"),
        ({"within": "bleu 0.5"}, "a loss in BLEU is a negative number"),
        ({"within": "length -1"}, "'length' is no metric"),
        ({"memory": "300"}, "--memory: '300' is no positive number"),
        ({"size": "0MB"}, "--size: '0MB' is no positive number"),
        ({"latency": "20MB"}, "--latency: '20MB' is no positive number"),
        ({"memory": "0.0001kB"}, "--memory: '0.0001kB' is no positive number"),
        ({"size": f"{'9' * 400}MB"}, "--size: '9"),
        ({"latency": f"0.{'0' * 320}1us"}, "--latency: '0.0"),
        ({"within": f"bleu -{'9' * 400}"}, "is not a metric and a difference"),
    ],
)
def test_what_is_not_understood_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Budget.parse(**given)
