"""Checkpoints on disk: complete or absent, pruned, averaged."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Optimizer
from sparsenmt.training.checkpoints import (
    MANIFEST,
    Checkpoint,
    average_weights,
    clean_checkpoints,
    find_checkpoints,
    prune_checkpoints,
    write_checkpoint,
)
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.state import (
    Multiplier,
    Progress,
    RunningSums,
    ValidationResult,
    load_optimizer_state,
    load_random_states,
    make_optimizer,
    optimizer_state,
    random_states,
)
from tests.training.support import read_progress, small_model

TENSOR = {"x": torch.arange(6.0).view(2, 3)}


def write(directory: Path, update: int, value: float = 0.0, *, interim: bool = False) -> Checkpoint:
    return write_checkpoint(
        directory,
        Progress(update=update),
        weights={"x": torch.full((2, 3), value)},
        optimizer=TENSOR,
        random={"0/cpu": torch.get_rng_state()},
        interim=interim,
    )


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "checkpoints"))


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
        raise OSError(errno.ENOSPC, "no space left")

    before = [path.read_bytes() for path in sorted((tmp_path / "checkpoints/update-00000005").iterdir())]
    for part in ("save_tensors", "write_text", "write_sealed", "publish_directory"):
        for update in (5, 6):
            monkeypatch.setattr(f"sparsenmt.training.checkpoints.{part}", fails)
            with pytest.raises(OSError, match="no space") as caught:
                write(tmp_path, update, 1.0)
            monkeypatch.undo()
            assert f"update-0000000{update}" in caught.value.filename
            assert names(tmp_path) == ["update-00000005"]
            (only,) = find_checkpoints(tmp_path)
            assert [path.read_bytes() for path in sorted(only.path.iterdir())] == before
    write(tmp_path, 6)
    assert names(tmp_path) == ["update-00000005", "update-00000006"]


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
    prune_checkpoints(tmp_path, keep_last=keep_last, keep=keep)
    assert names(tmp_path) == [f"update-{update:08d}" for update in left]


@pytest.mark.parametrize(
    ("interim", "keep_last", "left"),
    [
        ([6], 2, [4, 5, 6]),  # the newest of all is what a run goes on from; the others stay as if it were not there
        ([5], 2, [4, 6]),
        ([4, 5, 6], 2, [2, 3, 6]),
        ([1, 2, 3, 4, 5, 6], 2, [6]),
        ([1, 3], 9, [2, 4, 5, 6]),
    ],
)
def test_interim_checkpoints_displace_no_others(
    tmp_path: Path, interim: list[int], keep_last: int, left: list[int]
) -> None:
    for update in range(1, 7):
        assert write(tmp_path, update, interim=update in interim).interim is (update in interim)
    prune_checkpoints(tmp_path, keep_last=keep_last, keep=[])
    assert [checkpoint.update for checkpoint in find_checkpoints(tmp_path)] == left


def files_of(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in checkpoint.iterdir())


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    """A bit at any place of any file; a byte more, a byte less, a file less; the check after the repair is content.

    Of the manifest, which is JSON, only white space may change: it says the same.
    """
    checkpoint = write(tmp_path, 5)
    draw = random.Random(1)
    assert files_of(checkpoint.path) == [
        MANIFEST,
        "optimizer.safetensors",
        "progress.json",
        "random.safetensors",
        "weights.safetensors",
    ]
    for name in files_of(checkpoint.path):
        path = checkpoint.path / name
        content = path.read_bytes()
        flipped = []
        for _ in range(40):
            position, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
            flipped.append(content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :])
        cut = [b"", content[:-3], content[: len(content) // 2]]
        for other in (*flipped, *cut, content + (b"x" if name == MANIFEST else b" ")):
            path.write_bytes(other)
            with pytest.raises(UserError) as caught:
                checkpoint.check()
            assert str(checkpoint.path) in str(caught.value.where)
        path.unlink()
        with pytest.raises(UserError):
            checkpoint.check()
        path.write_bytes(content)
        checkpoint.check()


def test_a_checkpoint_under_another_name_is_none(tmp_path: Path) -> None:
    """Somebody's copy of update 5 as update 9 would begin the ninth update with the weights of the fifth."""
    written = write(tmp_path, 5).path
    copy = Checkpoint(Path(shutil.copytree(written, written.with_name("update-00000009"))))
    with pytest.raises(UserError, match="not a checkpoint"):
        copy.check()


@pytest.mark.parametrize("name", [MANIFEST, "optimizer.safetensors", "progress.json", "weights.safetensors"])
def test_a_damaged_checkpoint_is_set_aside(tmp_path: Path, name: str) -> None:
    for update in (3, 5):
        write(tmp_path, update)
    content = (tmp_path / "checkpoints/update-00000005" / name).read_bytes()
    for _ in range(2):  # a second damaged one of the same update takes the place of the first
        write(tmp_path, 5)
        (tmp_path / "checkpoints/update-00000005" / name).write_bytes(content[:-2])
        (message,) = clean_checkpoints(tmp_path)
        assert f"update-00000005/{name}" in message and "renamed to damaged-update-00000005" in message
        assert names(tmp_path) == ["damaged-update-00000005", "update-00000003"]
        assert [checkpoint.update for checkpoint in find_checkpoints(tmp_path)] == [3]
        assert len(files_of(tmp_path / "checkpoints/damaged-update-00000005")) == 5, "nothing of it is lost"
    assert clean_checkpoints(tmp_path) == []


def test_what_was_left_half_made_goes(tmp_path: Path) -> None:
    """Writing, removing and replacing, each stopped where it leaves most behind."""
    folder = tmp_path / "checkpoints"
    write(tmp_path, 3, 3.0)
    (folder / ".update-00000004.partial").mkdir()
    (folder / ".update-00000004.partial/weights.safetensors").write_bytes(b"half")
    write(tmp_path, 5, 5.0).path.rename(folder / ".update-00000005.old")  # before the new one got its name
    write(tmp_path, 6, 6.0).path.rename(folder / ".update-00000006.old")
    write(tmp_path, 6, 6.5)  # and after
    (folder / "notes").mkdir()
    assert [checkpoint.update for checkpoint in find_checkpoints(tmp_path)] == [3, 6]
    assert clean_checkpoints(tmp_path) == []
    assert names(tmp_path) == ["notes", "update-00000003", "update-00000005", "update-00000006"]
    values = [float(checkpoint.weights()["x"][0, 0]) for checkpoint in find_checkpoints(tmp_path)]
    assert values == [3.0, 5.0, 6.5]


def test_there_is_nothing_to_tidy(tmp_path: Path) -> None:
    assert clean_checkpoints(tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_shapes_are_checked(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, 5, 2.0)
    assert torch.equal(checkpoint.weights({"x": (2, 3)})["x"], torch.full((2, 3), 2.0))
    for shapes in ({"x": (3, 2)}, {"y": (2, 3)}, {}, {"x": (2, 3), "y": ()}):
        with pytest.raises(UserError, match="not of this model"):
            checkpoint.weights(shapes)


def with_weights(directory: Path, update: int, weights: dict[str, torch.Tensor]) -> Checkpoint:
    return write_checkpoint(directory, Progress(update=update), weights=weights, optimizer={}, random={})


def test_average(tmp_path: Path) -> None:
    checkpoints, written = [], []
    for number in range(3):
        torch.manual_seed(number)
        written.append({"a": torch.randn(4, 5), "b": torch.randn(2)})
        checkpoints.append(with_weights(tmp_path, number + 1, written[-1]))
    found = average_weights(checkpoints)
    for name in ("a", "b"):
        expected = torch.stack([weights[name].double() for weights in written]).mean(0).float()
        assert torch.equal(found[name], expected)
    assert torch.equal(average_weights(checkpoints[:1])["a"], written[0]["a"])


def test_weights_of_other_shapes_are_not_averaged(tmp_path: Path) -> None:
    one = with_weights(tmp_path, 1, {"a": torch.zeros(4)})
    others: tuple[dict[str, torch.Tensor], ...] = ({"a": torch.zeros(5)}, {"b": torch.zeros(4)}, {})
    for number, other in enumerate(others):
        with pytest.raises(UserError, match="other shapes"):
            average_weights([one, with_weights(tmp_path, number + 2, other)])


def test_weights_of_another_checkpoint_are_not_averaged(tmp_path: Path) -> None:
    """They are sound by themselves: only the manifest tells that they do not belong there."""
    one, two = (with_weights(tmp_path, number, {"a": torch.full((4,), float(number))}) for number in (1, 2))
    (one.path / "weights.safetensors").write_bytes((two.path / "weights.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"update-00000001/weights\.safetensors: damaged"):
        average_weights([one, two])
    two.path.rename(two.path.with_name("update-00000003"))
    with pytest.raises(UserError, match="not a checkpoint of this version"):
        average_weights([Checkpoint(two.path.with_name("update-00000003"))])


def test_progress_goes_through_json() -> None:
    progress = Progress(
        7,
        2,
        3,
        12345,
        1.5,
        4,
        2,
        [ValidationResult(3, {"loss": 2.5}), ValidationResult(6, {"loss": 2.25, "bleu": 1})],
        RunningSums(3, 17, 2.0, 3.0, 0.1, 0.3, {"open": 0.7}),
        True,
        3,
        {"open": Multiplier(0.5, 0.25, 0.125)},
    )
    assert read_progress(progress.to_json()) == progress
    assert read_progress(progress.to_json().encode()) == progress
    assert read_progress(Progress().to_json()) == Progress()
    third = Progress(seconds=0.1 + 0.2, recent=RunningSums(loss=1 / 3))
    assert read_progress(third.to_json()) == third, "to the last bit"


def test_optimizer_goes_through_tensors() -> None:
    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, updates: range) -> None:
        for update in updates:
            for number, parameter in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(100 * update + number)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.01
            optimizer.step()

    def make(seed: int) -> tuple[torch.nn.Module, MasterWeights, torch.optim.Optimizer]:
        model = small_model(seed, dtype=torch.float32)
        weights = MasterWeights(model, torch.float32)
        return model, weights, make_optimizer(weights, Optimizer(weight_decay=0.1))

    model, weights, optimizer = make(1)
    start = optimizer_state(optimizer, weights)
    assert start.keys() == {f"{name}/{key}" for name in weights.named for key in ("exp_avg", "exp_avg_sq", "step")}
    assert not any(value.any() for value in start.values())
    train(model, optimizer, range(3))
    state = {name: value.clone() for name, value in weights.state().items()}
    tensors = optimizer_state(optimizer, weights)
    train(model, optimizer, range(3, 6))
    other, other_weights, other_optimizer = make(2)
    other_weights.load(state)
    load_optimizer_state(other_optimizer, other_weights, tensors)
    train(other, other_optimizer, range(3, 6))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_decay_is_for_matrices() -> None:
    weights = MasterWeights(small_model(dtype=torch.float32), torch.float32)
    optimizer = make_optimizer(weights, Optimizer(weight_decay=0.1))
    for group in optimizer.param_groups:
        assert {p.dim() >= 2 for p in group["params"]} == {group["weight_decay"] > 0}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(weights.named)


def test_random_states() -> None:
    cpu = torch.device("cpu")
    states = random_states(cpu)
    expected = torch.rand(5)
    load_random_states(states, cpu)
    assert torch.equal(torch.rand(5), expected)


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/update-00000003"])
def test_linked_checkpoints_are_left_alone(tmp_path: Path, name: str) -> None:
    """Cleaning would rename or remove what lies there."""
    elsewhere, model = tmp_path / "elsewhere", tmp_path / "model"
    (elsewhere / ".update-00000001.partial").mkdir(parents=True)
    (elsewhere / "update-00000003").mkdir()
    (model / name).parent.mkdir(parents=True)
    (model / name).symlink_to(elsewhere)
    for act in (clean_checkpoints, find_checkpoints):
        with pytest.raises(UserError, match="is a symbolic link"):
            act(model)
    assert sorted(path.name for path in elsewhere.iterdir()) == [".update-00000001.partial", "update-00000003"]
