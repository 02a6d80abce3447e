"""The weights of a finished run: validation chooses among means of the last checkpoints and the best single one."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.checks import load_recipe
from sparsenmt.cli import run
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.process.workers import Workers
from sparsenmt.storage.files import seal_text, unseal_text, write_sealed
from sparsenmt.training.checkpoints import average_weights, find_checkpoints
from sparsenmt.workflows.training import checkpoint_choice
from sparsenmt.workflows.training import train as training
from tests.commands.support import Run

Refused = Callable[..., str]
AVERAGED = ["training.average_last=3", "training.validation.every=4", "training.validation.metric=loss"]


def dev_loss(directory: Path, weights: dict[str, torch.Tensor]) -> float:
    """The negative log-likelihood of a target token, by forced decoding instead of the validation of training."""
    bundle = open_model(directory, device=torch.device("cpu"), dtype=None)
    bundle.model.load_state_dict(weights)
    sources, targets = (Path(f"corpus/dev.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de"))
    scores = list(score_pairs(bundle, input_lines(sources), targets))
    return -sum(each.log_probability for each in scores) / sum(len(each.token_log_probabilities) for each in scores)


def assert_same(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_mean_with_early_checkpoints_does_not_become_the_model(command: Run, workspace: Path) -> None:
    """The first checkpoints of a short run are bad, and so is their mean with the last one."""
    result = command("train", "small.yaml", "directory=short", *AVERAGED)
    assert result.code == 0, result.err
    found = find_checkpoints(Path("short"))
    assert [each.update for each in found] == [4, 8, 12]
    taken = dev_loss(Path("short"), open_model(Path("short"), dtype=None).model.state_dict())
    singles = [dev_loss(Path("short"), each.weights()) for each in found]
    assert dev_loss(Path("short"), average_weights(found)) > min(singles) + 0.05, "choose a shorter run"
    assert taken <= min(singles) + 1e-5, "a single checkpoint is better"


@pytest.fixture(scope="module")
def finished(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `trained` with the run ``short``, whose last checkpoint is better than every mean."""
    folder = tmp_path_factory.mktemp("chosen") / "work"
    shutil.copytree(trained, folder)
    with contextlib.chdir(folder):
        assert run(["train", "small.yaml", "directory=short", *AVERAGED]) == 0
    return folder


@pytest.fixture
def short(finished: Path, workspace: Path) -> Path:
    """The run ``short`` in ``workspace``."""
    recipe = Path(shutil.copytree(finished / "short", workspace / "short")) / "recipe.yaml"
    recipe.write_text(seal_text(unseal_text(recipe.read_text()).replace(str(finished), str(workspace))))
    return Path("short")


def test_what_was_taken_is_written_and_said(command: Run, short: Path) -> None:
    (short / "weights.safetensors").unlink()
    result = command("train", "small.yaml", "directory=short", *AVERAGED)
    validated = find_checkpoints(short)[-1].progress().validated
    assert [each.update for each in validated] == [4, 8, 12]
    assert re.search(
        r"short/weights.safetensors: update 12: the best on the validation text, loss \d\.\d{3} "
        r"\(last 2: loss \d\.\d{3}; last 3: loss \d\.\d{3}\)\n",
        result.err,
    )
    record = model_directory.read_manifest(short)["average"]
    assert (record["taken"], record["by"]) == ([12], ["loss"])
    assert [each["updates"] for each in record["candidates"]] == [[12], [8, 12], [4, 8, 12]]
    losses = [each["values"]["loss"] for each in record["candidates"]]
    assert losses[0] == validated[-1].values["loss"] == min(losses)
    assert losses[2] == pytest.approx(dev_loss(short, average_weights(find_checkpoints(short))), rel=1e-4)
    assert load_file(short / "weights.safetensors").keys() == find_checkpoints(short)[-1].weights().keys()


def test_exactly_the_mean_without_a_choice(command: Run, short: Path) -> None:
    (short / "weights.safetensors").unlink()
    result = command("train", "small.yaml", "directory=short", *AVERAGED, "training.choose_average=none")
    assert 'changed: training.choose_average is "none" instead of "dev"' in result.err
    assert "short/weights.safetensors: the mean of 3 checkpoints, updates 4, 8, 12\n" in result.err
    assert_same(load_file(short / "weights.safetensors"), average_weights(find_checkpoints(short)))
    assert model_directory.read_manifest(short)["average"] is None


def test_a_loss_with_a_weight_only_leaves_no_choice(command: Run, workspace: Path) -> None:
    """Otherwise the best quality would be that of the checkpoint whose gates are the widest open."""
    gates = ["model.memory=[{name: l0drop}]", "losses.l0.weight=0.3", "directory=gated", "training.max_updates=4"]
    result = command("train", "small.yaml", *gates, "training.save_every=2", *AVERAGED)
    assert "the mean of 2 checkpoints, updates 2, 4; quality does not choose, because l0 has a weight" in result.err


@pytest.mark.parametrize("place", ["mean", "weights"])
def test_an_interrupt_during_the_choice_loses_nothing(
    command: Run, short: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    expected = {path.name: path.read_bytes() for path in short.iterdir() if path.is_file()}
    (short / "weights.safetensors").unlink()
    if place == "mean":
        write_sealed(short / "manifest.json", {**model_directory.read_manifest(short), "average": None})
    module, name = (checkpoint_choice, "average_weights") if place == "mean" else (model_directory, "write_weights")

    def stop(*_: object, **__: object) -> NoReturn:
        raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, stop)
        result = command("train", "small.yaml", "directory=short", *AVERAGED)
    assert result.code == 143 and "Resume with: sparsenmt train small.yaml" in result.err
    assert not (short / "weights.safetensors").exists()
    assert command("train", "small.yaml", "directory=short", *AVERAGED).code == 0
    found = {path.name: path.read_bytes() for path in short.iterdir() if path.is_file()}
    assert found == expected
    assert "nothing is left to do" in command("train", "small.yaml", "directory=short", *AVERAGED).err


def test_runs_of_before_the_choice(command: Run, short: Path) -> None:
    """Their recipes have no `choose_average`, their manifests no `average`."""
    recipe = short / "recipe.yaml"
    text = "\n".join(line for line in unseal_text(recipe.read_text()).split("\n") if "choose_average" not in line)
    recipe.write_text(seal_text(text))
    write_sealed(
        short / "manifest.json", {k: v for k, v in model_directory.read_manifest(short).items() if k != "average"}
    )
    assert model_directory.read_recipe(short).training.choose_average == "dev"
    assert "nothing is left to do" in command("train", "small.yaml", "directory=short", *AVERAGED).err
    assert command("decode", "short", stdin=b"a\n").code == 0
    assert command("average", "short", "--last", "3").code == 0
    assert_same(load_file(short / "weights.safetensors"), average_weights(find_checkpoints(short)))


def test_several_numbers_of_the_command(command: Run, short: Path) -> None:
    chosen = (short / "weights.safetensors").read_bytes()
    expected = model_directory.read_manifest(short)["average"]
    assert command("average", "short", "--last", "3").code == 0
    assert (short / "weights.safetensors").read_bytes() != chosen and model_directory.read_manifest(short)[
        "average"
    ] is None
    result = command("average", "short", "--last", "1,2,3", "--output", "copy")
    assert result.code == 0, result.err
    title, heads, _, *rows = result.out.decode().splitlines()
    assert title == "means of checkpoints on the validation text"
    assert heads.split() == ["checkpoints", "updates", "loss", "choice"]
    assert [row.split()[:2] for row in rows] == [["update", "12"], ["last", "2"], ["last", "3"]]
    assert [row.endswith("taken") for row in rows] == [True, False, False]
    assert "copy/weights.safetensors: update 12: the best on the validation text" in result.err
    assert command("average", "short", "--last", "1,2,3").out == result.out
    assert (short / "weights.safetensors").read_bytes() == (Path("copy/weights.safetensors")).read_bytes() == chosen
    assert (
        model_directory.read_manifest(short)["average"]
        == model_directory.read_manifest(Path("copy"))["average"]
        == expected
    )
    assert "exclude" in command("average", "short", "--last", "1,2", "--update", "4").err
    assert "are only 3 checkpoints" in command("average", "short", "--last", "1,9").err


def test_the_command_validates_on_the_data_of_the_training_only(refused: Refused, command: Run, short: Path) -> None:
    assert command("prepare", "small.yaml", "data.directory=others", "data.tokenizer.vocabulary_size=140").code == 0
    shutil.rmtree("prepared")
    shown = refused("average", "short", "--last", "1,2")
    assert "prepared" in shown and "sparsenmt prepare" in shown
    lines = Path("corpus/dev.en").read_text().splitlines()
    Path("corpus/dev.en").write_text("\n".join([*lines[:-1], lines[0], ""]))
    assert command("prepare", "small.yaml").code == 0
    assert "other data than the model was trained on" in refused("average", "short", "--last", "1,2")


def test_a_damaged_best_checkpoint_is_left_out(command: Run, workspace: Path) -> None:
    """The best validation of this run is an early one, which no mean reaches."""
    options = ["directory=worse", "training.learning_rate=3", "training.validation.every=4", "training.keep_last=1"]
    options += ["training.warmup_updates=12"]  # the rate rises to the end: every update is worse than the one before
    assert command("train", "small.yaml", *options, "training.validation.metric=loss").code == 0
    first, last = find_checkpoints(Path("worse"))
    assert first.update < last.update == 12, "choose a higher learning rate"
    (first.path / "weights.safetensors").write_bytes(b"short")
    Path("worse/weights.safetensors").unlink()
    result = command("train", "small.yaml", *options, "training.validation.metric=loss")
    lost = f"the best single one, update {first.update}, was not kept"
    assert f"worse/weights.safetensors: update 12; {lost}\n" in result.err
    warning = f"the checkpoint of update {first.update} is damaged: the weights are without it"
    assert model_directory.read_manifest(Path("worse"))["warnings"] == [warning]


def test_every_process_returns_when_the_weights_are_there(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run of a sweep may begin with them."""
    events: list[str] = []
    monkeypatch.setattr(Workers, "barrier", lambda self: events.append("all are here"))
    monkeypatch.setattr(training, "finish", lambda *_: events.append("weights"))
    training.train(load_recipe(Path("small.yaml"), ["directory=other", "training.max_updates=1"]))
    assert events[-2:] == ["weights", "all are here"]
