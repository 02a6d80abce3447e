"""Checkpoints on disk: complete or absent, pruned, averaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sparsenmt.errors import UserError
from sparsenmt.training.checkpoints import average_weights, find_checkpoints, prune, write_checkpoint
from sparsenmt.training.precision import Weights
from sparsenmt.training.state import (
    Progress,
    Validated,
    load_optimizer,
    load_random,
    make_optimizer,
    optimizer_tensors,
    random_tensors,
)
from tests.training.support import small_model

TENSOR = {"x": torch.arange(6.0).view(2, 3)}


def write(directory: Path, update: int, value: float = 0.0) -> None:
    write_checkpoint(
        directory,
        Progress(update=update),
        weights={"x": torch.full((2, 3), value)},
        optimizer=TENSOR,
        random={"cpu": torch.get_rng_state()},
    )


def test_written_checkpoints_are_found_oldest_first(tmp_path: Path) -> None:
    assert find_checkpoints(tmp_path) == []
    for update in (20, 3, 100):
        write(tmp_path, update, float(update))
    found = find_checkpoints(tmp_path)
    assert [checkpoint.update for checkpoint in found] == [3, 20, 100]
    assert torch.equal(found[1].weights()["x"], torch.full((2, 3), 20.0))
    assert torch.equal(found[1].optimizer()["x"], TENSOR["x"])
    assert found[1].progress() == Progress(update=20)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [f"update-{n:08d}" for n in (3, 20, 100)]


def test_one_of_the_same_update_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 5, 1.0)
    write(tmp_path, 5, 2.0)
    (only,) = find_checkpoints(tmp_path)
    assert float(only.weights()["x"][0, 0]) == 2.0


def test_half_written_ones_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 5)

    def fails(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("sparsenmt.training.checkpoints.save_file", fails)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path, 6)
    monkeypatch.undo()
    assert [checkpoint.update for checkpoint in find_checkpoints(tmp_path)] == [5]
    write(tmp_path, 6)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["update-00000005", "update-00000006"]


def test_other_things_are_not_checkpoints(tmp_path: Path) -> None:
    for name in ("update-5", ".update-00000007.tmp", "update-00000007x", "notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert find_checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    ("keep_last", "keep", "left"),
    [
        (1, [], [6]),
        (2, [], [5, 6]),
        (2, [1], [1, 5, 6]),
        (1, [3, 6], [3, 6]),
        (9, [], [1, 2, 3, 4, 5, 6]),
        (1, [99], [6]),
    ],
)
def test_prune(tmp_path: Path, keep_last: int, keep: list[int], left: list[int]) -> None:
    for update in range(1, 7):
        write(tmp_path, update)
    prune(tmp_path, keep_last=keep_last, keep=keep)
    assert [checkpoint.update for checkpoint in find_checkpoints(tmp_path)] == left


def test_average(tmp_path: Path) -> None:
    files = []
    for number in range(3):
        torch.manual_seed(number)
        save_file({"a": torch.randn(4, 5), "b": torch.randn(2)}, tmp_path / f"{number}")
        files.append(tmp_path / f"{number}")
    found = average_weights(files)
    for name in ("a", "b"):
        expected = torch.stack([load_file(file)[name].double() for file in files]).mean(0).float()
        assert torch.equal(found[name], expected)
    assert torch.equal(average_weights(files[:1])["a"], load_file(files[0])["a"])


def test_weights_of_other_shapes_are_not_averaged(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4)}, tmp_path / "one")
    for number, other in enumerate(({"a": torch.zeros(5)}, {"b": torch.zeros(4)}, {})):
        save_file(other, tmp_path / str(number))
        with pytest.raises(UserError, match="another shape"):
            average_weights([tmp_path / "one", tmp_path / str(number)])


def test_progress_goes_through_json() -> None:
    progress = Progress(
        7, 2, 3, 12345, 1.5, 1, [Validated(3, {"loss": 2.5}), Validated(6, {"loss": 2.25, "bleu": 1})], True
    )
    assert Progress.from_json(progress.to_json()) == progress
    assert Progress.from_json(progress.to_json().encode()) == progress
    assert Progress.from_json(Progress().to_json()) == Progress()


def test_optimizer_goes_through_tensors() -> None:
    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, updates: range) -> None:
        for update in updates:
            for number, parameter in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(100 * update + number)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.01
            optimizer.step()

    def make(seed: int) -> tuple[torch.nn.Module, Weights, torch.optim.Optimizer]:
        model = small_model(seed, dtype=torch.float32)
        weights = Weights(model, torch.float32)
        return model, weights, make_optimizer(weights, betas=(0.9, 0.98), epsilon=1e-9, weight_decay=0.1)

    model, weights, optimizer = make(1)
    assert optimizer_tensors(optimizer, weights) == {}
    train(model, optimizer, range(3))
    state = {name: value.clone() for name, value in weights.state().items()}
    tensors = optimizer_tensors(optimizer, weights)
    train(model, optimizer, range(3, 6))
    other, other_weights, other_optimizer = make(2)
    other_weights.load(state)
    load_optimizer(other_optimizer, other_weights, tensors)
    train(other, other_optimizer, range(3, 6))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_decay_is_for_matrices() -> None:
    weights = Weights(small_model(dtype=torch.float32), torch.float32)
    optimizer = make_optimizer(weights, betas=(0.9, 0.98), epsilon=1e-9, weight_decay=0.1)
    for group in optimizer.param_groups:
        assert {p.dim() >= 2 for p in group["params"]} == {group["weight_decay"] > 0}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(weights.named)


def test_random_states() -> None:
    cpu = torch.device("cpu")
    states = random_tensors(cpu)
    expected = torch.rand(5)
    load_random(states, cpu)
    assert torch.equal(torch.rand(5), expected)
