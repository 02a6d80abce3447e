"""Building a case in a test, or skipping it where assembly refuses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from tests.conformance.cases import Bench, Case, build, refused


def each(cases: Sequence[Case], fast: Callable[[Case], bool] = lambda case: case.is_first) -> pytest.MarkDecorator:
    """Run a test with every case; those that are not ``fast`` are marked thorough."""
    marks = [() if fast(case) else (pytest.mark.thorough,) for case in cases]
    chosen = [pytest.param(case, id=str(case), marks=mark) for case, mark in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize("case", chosen)


def bench_or_skip(case: Case, build: Callable[[Case], Bench] = build) -> Bench:
    """The built case. What is refused must be listed, and what is listed must be refused."""
    name = str(case).partition("-")[2]
    try:
        bench = build(case)
    except UserError as error:
        assert name in refused(), f"refused, but not listed in refused.txt: {name}\n{error}"
        pytest.skip(f"refused: {error}")
    assert name not in refused(), f"listed in refused.txt, but not refused: {name}"
    return bench


def run(bench: Bench, *checks: Callable[[Bench], None]) -> None:
    """Run checks that need no gradients."""
    with torch.no_grad():
        for check in checks:
            check(bench)


def language_model_section(case: Case) -> schema.Model:
    """The ``model`` section of a language model with the plugs of ``case`` at its self-attention."""
    choices = {plug.place.split(".")[-1]: {"name": plug.method.name, **plug.options} for plug in case.plugs}
    recurrence = choices.pop("recurrence", None)
    return schema.Model.model_validate(
        {
            **{"dimension": 16, "feed_forward": 24, "heads": 4, "encoder_layers": 0, "decoder_layers": 2},
            **{"norm": case.norm, "positions": "none", "segment_memory": 64, "dropout": {"residual": 0.0}},
            "attention": {"decoder_self": choices},
            "recurrence": recurrence,
        }
    )
