"""Low-rank adapters: the base at the start, only adapters change, merged as unmerged, exact resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from sparsenmt.errors import UserError
from sparsenmt.model.adapters import add_adapters
from sparsenmt.model.linear import Linear
from sparsenmt.model.protocol import Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.training.checkpoints import average_weights, find_checkpoints
from sparsenmt.training.merge import merge_adapters
from tests.training.support import make_batch, make_trainer, pairs, small_model, training_options, write_dataset


def adapted(dtype: torch.dtype = torch.float64, filtered: bool = False) -> Transformer:
    model = small_model(dtype=dtype, filtered=filtered)
    add_adapters(model, rank=3, alpha=6.0, dropout=0.0, targets=["q", "cross.v", "feed_forward"], seed=1)
    return model


def logits(model: Transformer) -> torch.Tensor:
    batch = make_batch(pairs(3))
    encoded = model.eval().encode(Source(batch.source, batch.source_valid, batch.features))
    (memory,) = encoded.memories.values()
    (hidden,) = model.decode(batch.target_input, memory).values()
    return model.project(hidden).detach()


def test_at_the_start_it_is_the_base_bit_for_bit() -> None:
    assert torch.equal(logits(adapted()), logits(small_model()))


def test_merged_weights_are_the_same_function() -> None:
    model, base = adapted(), small_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("adapter.up"):
                parameter.normal_()
    base.load_state_dict(merge_adapters(model.state_dict()))
    torch.testing.assert_close(logits(base), logits(model), rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_the_product() -> None:
    layer = Linear(5, 4).double()
    add_adapters(torch.nn.ModuleDict({"q": layer}), rank=2, alpha=3.0, dropout=0.0, targets=["q"], seed=1)
    assert layer.adapter is not None
    x, up, down = torch.randn(7, 5).double(), layer.adapter.up, layer.adapter.down
    torch.nn.init.normal_(up)
    twin_up, twin_down = (each.detach().clone().requires_grad_() for each in (up, down))
    layer(x).square().sum().backward()
    F.linear(x, layer.weight.detach() + 1.5 * twin_up @ twin_down, layer.bias.detach()).square().sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(up.grad, twin_up.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(down.grad, twin_down.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_adapters_and_methods_change_and_a_resumed_run_is_the_same(tmp_path: Path, dtype: torch.dtype) -> None:
    dataset = write_dataset(tmp_path / "data")
    before = {name: each.detach().clone() for name, each in adapted(torch.float32).named_parameters()}
    for name, lengths in (("whole", [6]), ("parts", [3, 6])):
        for updates in lengths:
            options = training_options(max_updates=updates)
            trainer = make_trainer(tmp_path / name, dataset, options, model=adapted(torch.float32), dtype=dtype)
            if found := find_checkpoints(tmp_path / name):
                trainer.restore(found[-1])
            trainer.run()
    whole, parts = (find_checkpoints(tmp_path / name)[-1] for name in ("whole", "parts"))
    after = whole.weights()
    assert all(torch.equal(each, parts.weights()[name]) for name, each in after.items())
    trained = {name for name in before if name.endswith(("adapter.up", "adapter.down"))}
    assert {name for name in before if not torch.equal(before[name], after[name])} == trained
    assert {name.rpartition("/")[0] for name in whole.optimizer()} == trained
    assert average_weights([whole]).keys() == small_model().state_dict().keys()


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(UserError, match="no linear layer 'queries'"):
        add_adapters(small_model(), rank=2, alpha=2.0, dropout=0.0, targets=["queries"], seed=1)
