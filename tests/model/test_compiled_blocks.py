"""Blocks that PyTorch compiles give the gradients of the plain ones; a part that it cannot compile stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.model import compiled_blocks
from sparsenmt.model.compiled_blocks import compile_blocks
from sparsenmt.model.transformer import Transformer
from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients
from tests.training.support import SHALLOW, gradients, make_batch, pairs, small_model


def trained(model: Transformer) -> list[dict[str, Tensor]]:
    """Gradients of two batches of different shapes."""
    found = []
    for rows in (pairs(5, 1), pairs(7, 2, longest=5)):
        batch = make_batch(rows)
        model.zero_grad()
        accumulate_gradients(model.train(), batch, Objective(0.1, "tokens", {}), UpdateTotals.of([batch]))
        found.append(gradients(model))
    return found


@pytest.mark.thorough  # the compiler alone takes most of a minute to load
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.timeout(1200)
def test_gradients_are_those_of_the_plain_blocks(backend: str) -> None:
    plain, compiled = (small_model(plan=SHALLOW, dtype=torch.float32) for _ in range(2))
    warnings: list[str] = []
    compile_blocks(compiled, warnings.append, backend=backend)
    for wanted, found in zip(trained(plain), trained(compiled), strict=True):
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)
    assert not warnings and compiled.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.timeout(1200)
def test_dropout_depends_on_the_seed_alone(backend: str) -> None:
    model = small_model(plan=SHALLOW, dtype=torch.float32, dropout=0.3)
    warnings: list[str] = []
    compile_blocks(model, warnings.append, backend=backend)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(trained(model)[-1])
    name = "decoder.layers.0.feed_forward.inner.weight"
    assert not warnings and torch.equal(found[0][name], found[1][name])
    assert not torch.equal(found[0][name], found[2][name])


class CompilerError(RuntimeError):
    """An error of the compiler."""


CompilerError.__module__ = "torch._dynamo.exc"


def test_what_cannot_be_compiled_stays_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(function: Any, **_: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            raise CompilerError(f"{function.__name__} has no graph\nmore")

        return call

    monkeypatch.setattr(compiled_blocks.torch, "compile", refuses)
    plain, model = (small_model(plan=SHALLOW, dtype=torch.float32) for _ in range(2))
    warnings: list[str] = []
    compile_blocks(model, warnings.append)
    for wanted, found in zip(trained(plain), trained(model), strict=True):
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert len(warnings) == 1 and warnings[0].endswith("has no graph")


def test_other_errors_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any, **_: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            raise RuntimeError("shapes cannot be multiplied")

        return call

    monkeypatch.setattr(compiled_blocks.torch, "compile", broken)
    model = small_model(plan=SHALLOW, dtype=torch.float32)
    compile_blocks(model, pytest.fail)
    with pytest.raises(RuntimeError, match="multiplied"):
        trained(model)
