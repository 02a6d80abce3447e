"""What `sparsenmt train` looks at before it goes on in a directory: which changes make another run, and --from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparsenmt.assemble import model_directory
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.errors import UserError
from sparsenmt.recipe.load import load_resolved
from sparsenmt.recipe.schema import Recipe
from sparsenmt.sparsity.registry import methods
from sparsenmt.storage.files import directory_lock, partial_path
from sparsenmt.training.state import Progress
from sparsenmt.workflows.training.run_checks import check_start, with_batch_size
from tests.commands.support import Run

Refused = Callable[..., str]

DONE = Progress(update=50, epoch=4, batches_done=3)


def recipe_with(directory: Path, **changes: object) -> Recipe:
    """A recipe; changes have dots written as two underscores, and override keys of the lowest level."""
    values: dict[str, Any] = {
        "name": "test",
        "directory": str(directory),
        "model": {"dimension": 16, "feed_forward": 32, "heads": 2},
        "data": {
            "directory": "prepared",
            "source_language": "en",
            "train": [{"name": "a", "source": "a.en", "target": "a.de", "weight": 2}, {"source": "b", "target": "c"}],
            "dev": {"source": "dev.en", "target": "dev.de"},
        },
        "training": {
            "max_updates": 100,
            "max_epochs": 9,
            "schedule": "constant",
            "threads": 1,
            "warmup_updates": 5,
            "validation": {"every": 10, "patience": 5},
        },
    }
    for key, value in changes.items():
        *parents, last = key.split("__")
        place = values
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place.setdefault(parent, {})
        place[last] = value
    return load_resolved(values, methods())


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a run has begun it. To be left as it is."""
    directory = tmp_path_factory.mktemp("run") / "model"
    recipe = recipe_with(directory)
    tokenizer = train_tokenizer(recipe.data.tokenizer.model_copy(update={"kind": "char"}), ["ab", "cd"])
    model_directory.initialise(directory, recipe, Tokenizers(tokenizer, tokenizer, True), FeatureSet({}), "print")
    return directory


def check(directory: Path, start_from: str | None = None, resumes: bool = True, **changes: object) -> list[str]:
    """The keys that were changed."""
    recipe = recipe_with(directory, **changes)
    return [key for key, _, _ in check_start(directory, recipe, "print", start_from, DONE if resumes else None)]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"name": "other"}, ["name"]),
        ({"data__directory": "elsewhere"}, ["data.directory"]),
        ({"data__train__1__source": "moved"}, ["data.train[1].source"]),
        ({"data__dev__target": "moved"}, ["data.dev.target"]),
        ({"data__test": {"source": "x", "target": "y"}}, ["data.test"]),
        ({"training__log_every": 3, "training__save_every": 7}, ["training.log_every", "training.save_every"]),
        ({"training__keep_last": 3, "training__keep_best": 7}, ["training.keep_best", "training.keep_last"]),
        ({"training__average_last": 3}, ["training.average_last"]),
        ({"training__skip_nonfinite": 3}, ["training.skip_nonfinite"]),
        ({"training__max_updates": 101}, ["training.max_updates"]),
        ({"training__max_updates": 50}, ["training.max_updates"]),
        ({"training__max_epochs": 5}, ["training.max_epochs"]),
        ({"training__max_epochs": 10}, ["training.max_epochs"]),
        ({"training__max_epochs": None}, ["training.max_epochs"]),
        ({"training__validation__patience": 6}, ["training.validation.patience"]),
        ({"training__validation__patience": None}, ["training.validation.patience"]),
    ],
)
def test_changes_that_make_no_other_run(begun: Path, changes: dict[str, object], keys: list[str]) -> None:
    assert sorted(check(begun, **changes)) == keys


@pytest.mark.parametrize(
    "changes",
    [
        {"model__dimension": 32},
        {"model__norm": "post"},
        {"data__train__0__weight": 3},
        {"data__train": [{"name": "a", "source": "a.en", "target": "a.de", "weight": 2}]},
        {"data__tokenizer__lowercase": True},
        {"data__filters__max_length": 99},
        {"training__seed": 5},
        {"training__threads": 2},
        {"training__batch_tokens": 999},
        {"training__accumulate_tokens": 9999},
        {"training__learning_rate": 1e-3},
        {"training__label_smoothing": 0.2},
        {"training__clip_norm": None},
        {"training__validation__every": 11},
        {"training__validation__metric": "loss"},
        {"training__optimizer__beta1": 0.8},
        {"training__max_updates": 49},
        {"training__max_epochs": 4},
        {"training__validation__patience": 4},
        {"decoding__beam_size": 3},
        {"losses": {"l0": {"weight": 0.3}}},
    ],
)
def test_changes_that_make_another_run(begun: Path, changes: dict[str, object]) -> None:
    """Each is named with both values; what is harmless beside it is not."""
    before = (begun / model_directory.RECIPE).read_bytes()
    with pytest.raises(UserError, match="another recipe") as caught:
        check(begun, **{**changes, "name": "other"})
    (key,) = changes
    named = caught.value.message.split("another recipe: ")[1]
    assert named.startswith((key.replace("__", ".").replace(".0", "[0]"), key.split("__")[0]))
    assert " instead of " in named and "name is" not in named
    assert (begun / model_directory.RECIPE).read_bytes() == before


def test_all_keys_that_differ_are_listed(begun: Path) -> None:
    with pytest.raises(UserError) as caught:
        check(begun, training__seed=5, model__norm="post", training__log_every=1)
    assert 'model.norm is "post" instead of "pre"' in caught.value.message
    assert "training.seed is 5 instead of 1" in caught.value.message
    assert "log_every" not in caught.value.message and caught.value.where == str(begun)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_ends_cannot_become_longer(begun: Path, tmp_path: Path, schedule: str) -> None:
    """It falls to the last update: the updates that were done would have had other rates."""
    directory = tmp_path / schedule
    shutil.copytree(begun, directory)
    model_directory.write_recipe(directory, recipe_with(directory, training__schedule=schedule))
    check(directory, training__schedule=schedule, training__max_epochs=10)
    with pytest.raises(UserError, match=r"training\.max_updates is 200 instead of 100"):
        check(directory, training__schedule=schedule, training__max_updates=200)
    with pytest.raises(UserError, match=r"training\.schedule"):
        check(directory, training__schedule="constant", training__max_updates=200)


def test_a_limit_that_was_passed_is_told(begun: Path) -> None:
    with pytest.raises(UserError, match=r"max_updates is 40 instead of 100") as caught:
        check(begun, training__max_updates=40, training__max_epochs=3)
    assert caught.value.hint is not None
    assert "To end it where it is, write training.max_updates=50 training.max_epochs=5." in caught.value.hint


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_ends_cannot_become_shorter(begun: Path, tmp_path: Path, schedule: str) -> None:
    directory = tmp_path / schedule
    shutil.copytree(begun, directory)
    model_directory.write_recipe(directory, recipe_with(directory, training__schedule=schedule))
    with pytest.raises(UserError, match=r"training\.max_updates is 60 instead of 100"):
        check(directory, training__schedule=schedule, training__max_updates=60)


def test_limits_that_were_none(begun: Path, tmp_path: Path) -> None:
    """A number of epochs may be set while it is not passed; patience might have ended the run earlier."""
    directory = tmp_path / "unlimited"
    shutil.copytree(begun, directory)
    limits: dict[str, object] = {"training__max_epochs": None, "training__validation__patience": None}
    model_directory.write_recipe(directory, recipe_with(directory, **limits))
    assert check(directory, **limits) == []
    assert check(directory, **{**limits, "training__max_epochs": 5}) == ["training.max_epochs"]
    for key, limit in (("training__max_epochs", 4), ("training__validation__patience", 99)):
        with pytest.raises(UserError, match="another recipe"):
            check(directory, **{**limits, key: limit})


def test_other_prepared_data(begun: Path) -> None:
    with pytest.raises(UserError, match="other prepared data"):
        check_start(begun, recipe_with(begun), "another", None, DONE)


@pytest.mark.parametrize(
    ("recorded", "given", "resumes", "message"),
    [
        (None, None, True, None),
        (None, None, False, None),
        (None, "a", False, None),  # nothing was trained yet: it may begin another way
        (None, "a", True, "began without --from"),
        ("a", "a", True, None),
        ("a", "a", False, None),
        ("a", None, True, None),
        ("a", None, False, "began from the weights of old, and has no checkpoints yet"),
        ("a", "b", True, "as they were then, not from these"),
        ("a", "b", False, "as they were then, not from these"),
    ],
)
def test_a_run_goes_on_as_what_it_began_as(
    begun: Path, tmp_path: Path, recorded: str | None, given: str | None, resumes: bool, message: str | None
) -> None:
    directory = tmp_path / "run"
    tokenizers = Tokenizers.load(begun / "tokenizers")
    origin = {"path": "old", "sha256": recorded} if recorded else None
    model_directory.initialise(
        directory, recipe_with(directory), tokenizers, FeatureSet({}), "print", started_from=origin
    )
    if message is None:
        assert check(directory, given, resumes) == []
    else:
        with pytest.raises(UserError, match=message) as caught:
            check(directory, given, resumes)
        assert caught.value.where == str(directory) and caught.value.hint


def test_what_an_interrupted_beginning_leaves_is_no_obstacle(begun: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    assert check(directory, None, False) == []
    for name in ("tokenizers", "features"):
        shutil.copytree(begun / name, directory / name)
        assert check(directory, None, False) == []
    for name in (model_directory.RECIPE, model_directory.MANIFEST):
        partial_path(directory / name).write_bytes(b"half")
    assert check(directory, None, False) == []
    (directory / "diary.txt").write_bytes(b"mine")
    with pytest.raises(UserError, match="holds something else"):
        check(directory, None, False)


# --- the command -------------------------------------------------------------------------------------------------


def test_a_longer_run_takes_harmless_changes_over(command: Run, workspace: Path) -> None:
    changes = ["training.max_updates=14", "training.log_every=1", "name=renamed"]
    result = command("train", "small.yaml", *changes)
    assert result.code == 0
    assert "model: resumes after update 12" in result.err
    for change in ("training.max_updates is 14 instead of 12", 'name is "renamed" instead of "small"'):
        assert change in result.err
    recipe = model_directory.read_recipe(workspace / "model")
    assert (recipe.name, recipe.training.max_updates, recipe.training.log_every) == ("renamed", 14, 1)
    lines = [json.loads(line) for line in (workspace / "model/metrics.jsonl").read_bytes().splitlines()]
    assert [line["update"] for line in lines if line["kind"] == "train"] == [13, 14]
    assert model_directory.weights_after(workspace / "model") == 14
    shown = command("train", "small.yaml", *changes)
    assert shown.code == 0 and "nothing is left to do" in shown.err and "changed" not in shown.err


def test_a_refused_change_changes_nothing(refused: Refused, workspace: Path) -> None:
    shown = refused("train", "small.yaml", "training.max_updates=11", "training.learning_rate=1e-4", "name=other")
    assert "training.max_updates is 11 instead of 12" in shown
    assert "training.learning_rate is 0.0001 instead of 0.003" in shown and "name is" not in shown


def test_from_is_recorded_and_asked_for(command: Run, refused: Refused, workspace: Path) -> None:
    second = ["small.yaml", "directory=second"]
    assert command("train", *second, "training.max_updates=2", "--from", "model").code == 0
    recorded = model_directory.read_manifest(workspace / "second")["started_from"]
    assert recorded == {"path": "model", "sha256": model_directory.weights_digest(workspace / "model")}
    for number, start_from in enumerate((["--from", "model"], []), 3):  # on resume it may be given, or left out
        result = command("train", *second, f"training.max_updates={number}", *start_from)
        assert result.code == 0 and f"resumes after update {number - 1}" in result.err
    assert model_directory.read_manifest(workspace / "second")["started_from"] == recorded
    longer = [*second, "training.max_updates=9"]
    assert "not from these" in refused("train", *longer, "--from", "second")
    shutil.rmtree(workspace / "second/checkpoints")
    (workspace / "second/weights.safetensors").unlink()
    shown = refused("train", *longer)
    assert "began from the weights of model, and has no checkpoints yet" in shown and "--from model" in shown
    result = command("train", *longer, "--from", "model")
    assert result.code == 0 and "resumes" not in result.err


def test_from_begins_with_these_weights(command: Run, workspace: Path) -> None:
    """And a run without it with others."""
    rate = ["training.learning_rate=1e-9", "training.max_updates=1"]
    assert command("train", "small.yaml", "directory=second", *rate, "--from", "model").code == 0
    assert command("train", "small.yaml", "directory=third", *rate).code == 0
    model, second, third = (
        load_file(workspace / name / model_directory.WEIGHTS) for name in ("model", "second", "third")
    )
    assert all(float((second[name] - model[name]).abs().max()) < 1e-7 for name in model)
    assert any(float((third[name] - model[name]).abs().max()) > 1e-2 for name in model)


def test_two_processes_do_not_train_in_one_directory(refused: Refused, command: Run, workspace: Path) -> None:
    with directory_lock(workspace / "model", "trains in this directory"):
        shown = refused("train", "small.yaml", "training.max_updates=20")
        assert "model: another process trains in this directory" in shown
        assert command("decode", "model", stdin=b"a\n").code == 0, "reading is no harm"
    assert command("train", "small.yaml").code == 0


# --- the size of batches -----------------------------------------------------------------------------------------

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("changes", "device", "size"),
    [
        ({}, CPU, 4096),
        ({}, GPU, 25_000),
        ({"training__accumulate_tokens": 8192}, GPU, 8192),
        ({"training__accumulate_tokens": 50_000}, GPU, 25_000),
        ({"training__batch_tokens": 1000}, GPU, 1000),
        ({"training__batch_tokens": 4096}, GPU, 4096),
    ],
)
def test_the_device_decides_where_the_recipe_does_not(
    tmp_path: Path, changes: dict[str, Any], device: torch.device, size: int
) -> None:
    assert with_batch_size(recipe_with(tmp_path / "new", **changes), device).training.batch_tokens == size


def test_a_run_keeps_its_size_on_another_device(tmp_path: Path, begun: Path) -> None:
    """It is in the recipe of the model directory; that of a run which an earlier version began, too."""
    directory = tmp_path / "model"
    shutil.copytree(begun, directory)
    recipe = recipe_with(directory)
    assert with_batch_size(recipe, GPU).training.batch_tokens == 4096
    begun_there = with_batch_size(recipe_with(tmp_path / "new"), GPU)
    model_directory.write_recipe(directory, begun_there)
    for device in (CPU, GPU):
        resumed = with_batch_size(recipe, device)
        assert resumed.training.batch_tokens == 25_000
        changed = check_start(directory, resumed, "print", None, DONE)
        assert [key for key, _, _ in changed] == ["directory"]
    with pytest.raises(UserError, match=r"training\.batch_tokens"):
        check_start(
            directory, with_batch_size(recipe_with(directory, training__batch_tokens=4096), GPU), "print", None, DONE
        )
