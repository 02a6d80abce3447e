"""Buckets of gradients: the sums are those of the definition, and start as soon as a gradient is complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from sparsenmt.process.workers import Workers
from sparsenmt.training import gradient_buckets
from sparsenmt.training.gradient_buckets import GradientBuckets
from sparsenmt.training.precision import MasterWeights


@dataclass(frozen=True)
class Twins(Workers):
    """Two processes with the same gradients, of which this is one; notes when a sum starts."""

    size: int = 2
    started: list[int] = field(default_factory=list)

    def start_sum(self, tensor: Tensor) -> Callable[[], None]:
        self.started.append(tensor.numel())

        def wait() -> None:
            tensor.mul_(2)

        return wait


class Steps(nn.Module):
    """Two layers and a table, which gets gradients from both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 16))
        self.lower, self.upper = nn.Linear(16, 16), nn.Linear(16, 16)
        self.unused = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)

    def backward(self, factor: float = 1.0) -> None:
        """Two backward passes, as from a decoder and an encoder."""
        states = self.lower(self.table)
        leaf = states.detach().requires_grad_()
        (self.upper(leaf) * self.table).sum().mul(factor).backward()
        assert leaf.grad is not None
        torch.autograd.backward([states], [leaf.grad])


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_buckets, "BUCKET_BYTES", 64)  # every parameter has its own


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_two_batches(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = Steps()
    weights, workers = MasterWeights(model, dtype), Twins()
    model.backward()
    weights.collect()
    model.backward(0.5)
    weights.collect()
    wanted = {name: 2 * (torch.zeros_like(m) if m.grad is None else m.grad) for name, m in weights.named.items()}
    for each in (*model.parameters(), *weights.named.values()):
        each.grad = None
    buckets = GradientBuckets(weights.trained(), workers)
    for _ in range(3):
        workers.started.clear()
        buckets.begin_update()
        for factor in (1.0, 0.5):
            buckets.begin_batch("key", last=factor != 1)
            model.backward(factor)
            buckets.end_batch()
            weights.collect()
            if factor == 1:
                assert not workers.started, "another batch follows"
        assert len(workers.started) == 6, "all are on their way, also that of `unused`"
        assert not buckets.start_rest() and len(workers.started) == 6
        buckets.finish(late=False)
        for name, master in weights.named.items():
            if name == "frozen":
                assert master.grad is None
            else:
                assert master.grad is not None and torch.equal(master.grad, wanted[name]), name
        assert dtype == torch.float32 or all(parameter.grad is None for parameter in model.parameters())
        for master in weights.named.values():
            master.grad = None


def test_a_gradient_that_comes_late_is_summed_by_itself() -> None:
    torch.manual_seed(1)
    model = Steps()
    weights, workers = MasterWeights(model, torch.float32), Twins()
    buckets = GradientBuckets(weights.trained(), workers)
    for late in (False, True):
        model.zero_grad()
        buckets.begin_update()
        buckets.begin_batch("key", last=True)
        model.backward()
        if late:
            model.backward()
        buckets.end_batch()
        assert buckets.start_rest() == late
        buckets.finish(late=late)
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    model.backward(4.0)
    for name, each in model.named_parameters():
        if each.requires_grad and name != "unused":
            torch.testing.assert_close(found[name], each.grad)


def test_tables_whose_gradient_is_written_out_come_last() -> None:
    model = Steps()
    pairs = MasterWeights(model, torch.float32).trained()
    workers = Twins()
    buckets = GradientBuckets(pairs, workers, last=[model.upper.weight])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [names[id(slot.parameter)] for slot in buckets._slots]
    assert order == ["upper.bias", "lower.bias", "lower.weight", "unused", "table", "upper.weight"]


def test_one_process_has_no_buckets() -> None:
    model = Steps()
    buckets = GradientBuckets(MasterWeights(model, torch.float32).trained(), Workers())
    buckets.begin_update()
    buckets.begin_batch("key", last=True)
    model.backward()
    buckets.end_batch()
    assert not buckets.start_rest()
    buckets.finish(late=False)
    assert model.unused.grad is None and model.table.grad is not None
