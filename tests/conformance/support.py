"""Building a case in a test, or skipping it where assembly refuses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from sparsenmt.testing.bench import Bench
from sparsenmt.testing.cases import Case, norm_of
from sparsenmt.testing.rules import build_or_refuse


def has_first_examples(case: Case) -> bool:
    """Return True if methods have their first examples."""
    return all(plug.options == plug.method.examples[0] for plug in case.plugs)


def is_first(case: Case) -> bool:
    """Return True if methods have their first examples, and the norm is that which falls to them."""
    return has_first_examples(case) and (not case.plugs or case.norm == norm_of(*case.plugs))


def each(cases: Sequence[Case], fast: Callable[[Case], bool] = is_first) -> pytest.MarkDecorator:
    """Run a test with every case; those that are not ``fast`` are marked thorough."""
    marks = [() if fast(case) else (pytest.mark.thorough,) for case in cases]
    chosen = [pytest.param(case, id=str(case), marks=mark) for case, mark in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize("case", chosen)


def bench_or_skip(case: Case) -> Bench:
    """The built case. What is refused must be declared by its method."""
    bench = build_or_refuse(case)
    if bench is None:
        pytest.skip("refused, as its method declares")
    return bench


def run(bench: Bench, *checks: Callable[[Bench], None]) -> None:
    """Run checks that need no gradients."""
    with torch.no_grad():
        for check in checks:
            check(bench)
