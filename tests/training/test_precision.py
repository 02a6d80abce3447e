"""fp32 weights behind bf16 arithmetic."""

from __future__ import annotations

import pytest
import torch

from sparsenmt.process.devices import pick_device
from sparsenmt.training.precision import MasterWeights, pick_dtype
from tests.training.support import small_model


def test_fp32_weights_are_the_models_own() -> None:
    model = small_model(dtype=torch.float32)
    weights = MasterWeights(model, torch.float32)
    assert {name: id(p) for name, p in weights.named.items()} == {name: id(p) for name, p in model.named_parameters()}


def test_masters_stay_fp32_under_the_same_names() -> None:
    model = small_model(dtype=torch.float32, filtered=True)
    names, before = list(model.state_dict()), {k: v.clone() for k, v in model.state_dict().items()}
    weights = MasterWeights(model, torch.bfloat16)
    assert list(weights.state()) == list(weights.named) == names
    for name, value in weights.state().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    wide = {name for name, value in model.state_dict().items() if value.dtype == torch.float32}
    assert wide == {"memory.output.0.direction"}  # methods compute in fp32
    assert weights.named["memory.output.0.direction"] is model.get_parameter("memory.output.0.direction")


def test_collect_and_publish() -> None:
    model = small_model(dtype=torch.float32)
    weights = MasterWeights(model, torch.bfloat16)
    name, parameter = next(iter(model.named_parameters()))
    master = weights.named[name]
    for _ in range(2):
        parameter.grad = torch.full_like(parameter, 0.5)
        weights.collect()
        assert parameter.grad is None
    assert master.grad is not None and master.grad.dtype == torch.float32
    assert torch.equal(master.grad, torch.ones_like(master))
    with torch.no_grad():
        master.add_(2.0**-12)  # less than bf16 resolves near 1, so only the master can remember it
    weights.publish()
    assert torch.equal(parameter, master.to(torch.bfloat16))
    others = [p for n, p in weights.named.items() if n != name]
    assert all(p.grad is None for p in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_load(dtype: torch.dtype) -> None:
    model, other = small_model(1, dtype=torch.float32), small_model(2, dtype=torch.float32)
    weights = MasterWeights(model, dtype)
    state = {name: value.clone() for name, value in other.state_dict().items()}
    weights.load(state)
    for name, value in weights.state().items():
        assert torch.equal(value, state[name])
        assert torch.equal(model.get_parameter(name), state[name].to(dtype))


def test_named_devices_and_precisions() -> None:
    cpu = torch.device("cpu")
    assert pick_device("cpu") == cpu
    assert pick_device("auto").type in ("cpu", "cuda")
    assert pick_dtype("fp32", cpu) == torch.float32
    assert pick_dtype("bf16", cpu) == torch.bfloat16
    assert pick_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
