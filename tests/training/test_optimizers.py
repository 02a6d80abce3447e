"""Optimizers and clipping against their formulas; runs go on with their sums."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Optimizer, Training
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.gradients import clip_gradients
from sparsenmt.training.loop import Trainer
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.state import make_optimizer
from tests.training.support import make_trainer, small_model, training_options, write_dataset

ADAGRAD = {"name": "adagrad", "epsilon": 1e-10}


class Two(torch.nn.Module):
    """Two parameters, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64))
        self.vector = torch.nn.Parameter(torch.tensor([0.1, -0.2], dtype=torch.float64))
        self.fixed = torch.nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)


def gradients_of(update: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(update)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 2), (2,))]


@pytest.mark.parametrize("initial", [0.0, 0.3])
@pytest.mark.parametrize("clip", ["total", "tensor", "step"])
def test_adagrad_is_that_of_the_papers(initial: float, clip: Any) -> None:
    """Number by number: Duchi et al. 2011, and with ``step`` the code of Sukhbaatar et al. 2019."""
    model = Two()
    weights = MasterWeights(model, torch.float32)
    optimizer = make_optimizer(weights, Optimizer(**ADAGRAD, initial_sum=initial))
    trained = [model.matrix, model.vector]
    values = [each.detach().flatten().tolist() for each in trained]
    sums = [[initial] * len(each) for each in values]
    for update in range(1, 5):
        found = gradients_of(update)
        flat = [each.flatten().tolist() for each in found]
        norms = [math.sqrt(sum(g * g for g in each)) for each in flat]
        total = math.sqrt(sum(norm * norm for norm in norms))
        for i, each in enumerate(flat):
            norm = total if clip == "total" else norms[i]
            share = min(1.0, 0.7 / norm)
            for j, g in enumerate(each):
                counted = g if clip == "step" else share * g
                sums[i][j] += counted**2
                step = share * g / (math.sqrt(sums[i][j]) + 1e-10)
                values[i][j] -= 0.07 / update * step
        for parameter, gradient in zip(trained, found, strict=True):
            parameter.grad = gradient.clone()
        norm, factors = clip_gradients(trained, 0.7, clip)
        assert float(norm) == pytest.approx(total)
        assert len(factors) == (len(trained) if clip == "step" else 0)
        for group, factor in zip(optimizer.param_groups, factors.tolist() or [1.0] * len(trained), strict=True):
            group["lr"] = 0.07 / update * factor
        optimizer.step()
    for parameter, wanted in zip(trained, values, strict=True):
        torch.testing.assert_close(parameter.detach().flatten(), torch.tensor(wanted).double(), rtol=1e-5, atol=1e-6)
    assert torch.equal(model.fixed, torch.ones(2, dtype=torch.float64))


def test_adam_is_pytorchs_and_has_its_moments_from_the_start() -> None:
    own, theirs = Two(), Two()
    options = Optimizer(beta1=0.8, beta2=0.9, epsilon=1e-7, weight_decay=0.1)
    optimizer = make_optimizer(MasterWeights(own, torch.float32), options)
    decay = [{"params": [theirs.matrix], "weight_decay": 0.1}, {"params": [theirs.vector], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(decay, lr=0.05, betas=(0.8, 0.9), eps=1e-7, fused=True)
    assert optimizer.state.keys() == {own.matrix, own.vector}
    assert not any(value.any() for state in optimizer.state.values() for value in state.values())
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    for update in range(5):
        for model in (own, theirs):
            model.matrix.grad, model.vector.grad = gradients_of(update)
        optimizer.step()
        reference.step()
        for name in ("matrix", "vector"):
            mine, yours = optimizer.state[getattr(own, name)], reference.state[getattr(theirs, name)]
            assert mine.keys() == yours.keys() and all(torch.equal(mine[key], yours[key]) for key in mine)
            assert torch.equal(getattr(own, name), getattr(theirs, name))


def test_adagrad_is_pytorchs() -> None:
    own, theirs = Two(), Two()
    optimizers = [
        make_optimizer(MasterWeights(own, torch.float32), Optimizer(**ADAGRAD)),
        torch.optim.Adagrad([theirs.matrix, theirs.vector], lr=0.05),
    ]
    for group in optimizers[0].param_groups:
        group["lr"] = 0.05
    for update in range(5):
        for model, optimizer in zip((own, theirs), optimizers, strict=True):
            model.matrix.grad, model.vector.grad = gradients_of(update)
            optimizer.step()
    assert torch.equal(own.matrix, theirs.matrix) and torch.equal(own.vector, theirs.vector)


def test_clipping_a_tensor_leaves_small_gradients_alone() -> None:
    model = Two()
    model.matrix.grad, model.vector.grad = (
        torch.full((2, 2), 2.0).double(),
        torch.tensor([0.03, 0.04], dtype=torch.float64),
    )
    norm, factors = clip_gradients([model.matrix, model.vector], 1.0, "tensor")
    assert float(norm) == pytest.approx(math.hypot(4.0, 0.05)) and not len(factors)
    torch.testing.assert_close(model.matrix.grad, torch.full((2, 2), 0.5).double(), rtol=1e-5, atol=0)
    assert model.vector.grad.tolist() == [0.03, 0.04]


@pytest.mark.parametrize("clip", ["total", "tensor", "step"])
def test_without_a_bound_nothing_is_clipped(clip: Any) -> None:
    model = Two()
    model.matrix.grad = torch.full((2, 2), 1e6).double()  # and the vector has none
    norm, factors = clip_gradients([model.matrix, model.vector], None, clip)
    assert float(norm) == 2e6 and factors.tolist() == ([1.0, 1.0] if clip == "step" else [])
    assert float(model.matrix.grad.max()) == 1e6 and model.vector.grad is None


def test_the_loop_takes_the_recipes_optimizer_and_clipping(tmp_path: Path) -> None:
    """The longest possible step of Adagrad's first update is the learning rate; a clipped one is far shorter."""
    dataset = write_dataset(tmp_path / "data")
    longest = {}
    for clip in ("total", "tensor", "step"):
        options = training_options(max_updates=1, warmup_updates=0, optimizer=ADAGRAD, clip=clip, clip_norm=1e-4)
        model = small_model(dtype=torch.float32)
        before = model.output_table.detach().clone()
        make_trainer(tmp_path / clip, dataset, options, model=model).run()
        longest[clip] = float((model.output_table.detach() - before).abs().max())
    assert longest["total"] == pytest.approx(options.learning_rate, rel=1e-3)
    assert longest["tensor"] == pytest.approx(options.learning_rate, rel=1e-3)
    assert 0 < longest["step"] < 0.1 * longest["tensor"]


@pytest.mark.parametrize(("clip", "schedule"), [("tensor", "constant"), ("step", "cosine")])
def test_adagrad_goes_on_from_a_checkpoint(tmp_path: Path, clip: str, schedule: str) -> None:
    dataset = write_dataset(tmp_path / "data")
    options = training_options(
        max_updates=14, save_every=5, keep_last=99, optimizer=ADAGRAD, clip=clip, clip_norm=0.1, schedule=schedule
    )

    def trainer(name: str, seed: int) -> Trainer:
        torch.manual_seed(seed)
        model = small_model(seed, dropout=0.2, dtype=torch.float32)
        return make_trainer(tmp_path / name, dataset, options, model=model)

    trainer("whole", 1).run()
    (middle,) = [each for each in find_checkpoints(tmp_path / "whole") if each.update == 5]
    assert {name.rpartition("/")[2] for name in middle.optimizer()} == {"sum", "step"}
    shutil.copytree(middle.path, tmp_path / "half" / "checkpoints" / middle.path.name)
    half = trainer("half", 2)
    half.restore(find_checkpoints(tmp_path / "half")[0])
    half.run()
    ends = [find_checkpoints(tmp_path / name)[-1].path for name in ("whole", "half")]
    for name in ("weights", "optimizer", "random"):
        whole, again = ((path / f"{name}.safetensors").read_bytes() for path in ends)
        assert whole == again, name


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    make_trainer(tmp_path / "adam", dataset, training_options(max_updates=2)).run()
    (checkpoint,) = find_checkpoints(tmp_path / "adam")
    other = make_trainer(tmp_path / "other", dataset, training_options(optimizer=ADAGRAD))
    with pytest.raises(UserError, match="another optimizer") as caught:
        other.take_over(checkpoint)
    assert caught.value.where == "training.optimizer.name"


def test_recipes_hold_the_keys_of_their_optimizer() -> None:
    """Those of Adam are as in recipes of older versions."""
    assert Optimizer().model_dump() == {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9, "weight_decay": 0.0}
    assert Optimizer(**ADAGRAD).model_dump() == {**ADAGRAD, "initial_sum": 0.0}
    for options in (Training(), Training(optimizer=Optimizer(**ADAGRAD), clip="step")):
        assert Training.model_validate(options.model_dump()) == options
    assert "clip" not in Training().model_dump()
