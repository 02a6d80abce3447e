"""`sparsenmt train` and `average`: what they write, going on, and what they refuse."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import time
import weakref
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.model import build_model
from sparsenmt.errors import UserError
from sparsenmt.model.transformer import Transformer
from sparsenmt.native.kernels import kernels
from sparsenmt.native.library import SWITCH
from sparsenmt.storage.files import read_sealed, write_sealed
from sparsenmt.training.loop import Trainer
from sparsenmt.workflows.training import validation
from sparsenmt.workflows.training.prepare import open_data
from tests.commands.support import Run, program

Refused = Callable[..., str]


def test_what_a_model_directory_holds(command: Run, workspace: Path) -> None:
    model = workspace / "model"
    assert {path.name for path in model.iterdir()} - {"tensorboard"} == {  # where TensorBoard is installed
        "README.md",
        "checkpoints",
        "features",
        "manifest.json",
        "metrics.jsonl",
        "recipe.yaml",
        "tokenizers",
        "weights.safetensors",
    }
    records = [json.loads(line) for line in (model / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [record["update"] for record in records if record["kind"] == "validation"] == [6, 12]
    assert sorted(path.name for path in (model / "checkpoints").iterdir())[-1] == "update-00000012"
    assert json.loads((model / "manifest.json").read_bytes())["provenance"]["seed"] == 1


def test_train_says_where_the_log_is_and_what_comes_next(command: Run, workspace: Path) -> None:
    result = command("train", "small.yaml", "directory=a log", "training.max_updates=1", "training.trackers=[]")
    lines = result.err.splitlines()
    assert result.code == 0 and lines[0] == "a log/metrics.jsonl: the log", result.err
    files = "--source FILE --reference FILE"
    assert lines[-2:] == [
        f"  Score it with: sparsenmt score --model 'a log' {files}",
        f"  See what it does with: sparsenmt report 'a log' {files} -o report.html",
    ]
    curves = "; curves: tensorboard --logdir tracked" * (find_spec("tensorboard") is not None)
    overrides = ("directory=tracked", "training.max_updates=1", "data.test={source: dev.de, target: dev.en}")
    result = command("train", "small.yaml", *overrides)
    lines = result.err.splitlines()
    assert lines[0] == f"tracked/metrics.jsonl: the log{curves}", result.err
    assert lines[-2].endswith("/dev.de --reference " + lines[-2].split()[-1]) and lines[-2].endswith("/dev.en")
    assert "the log" not in command("train", "small.yaml", *overrides).err


def test_a_finished_run_is_left_alone(command: Run, workspace: Path) -> None:
    assert command("average", "model").code == 0
    averaged = (workspace / "model/weights.safetensors").read_bytes()
    result = command("train", "small.yaml")
    assert result.code == 0 and "nothing is left to do" in result.err
    assert (workspace / "model/weights.safetensors").read_bytes() == averaged


def test_from_the_weights_of_a_model(command: Run, workspace: Path) -> None:
    result = command("train", "small.yaml", "directory=second", "training.max_updates=2", "--from", "model")
    assert result.code == 0 and "warning" not in result.err
    prepare = ["data.directory=other", "data.tokenizer.lowercase=true"]
    assert command("prepare", "small.yaml", *prepare).code == 0
    arguments = ["directory=third", "training.max_updates=2", "--from", "model", *prepare]
    assert "other vocabularies" in command("train", "small.yaml", *arguments).err


def test_dump_config(command: Run, workspace: Path) -> None:
    result = command("train", "small.yaml", "training.seed=5", "directory=new", "--dump-config")
    assert any("seed: 5" in line for line in result.lines)
    assert not (workspace / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["nowhere.yaml"], ["nowhere.yaml", "no such file"]),
        (["corpus"], ["corpus: this is a directory", "Name the recipe's file"]),
        (["small.yaml", "nonsense"], ["nonsense", "key=value"]),
        (["small.yaml", "training.max_update=3"], ["training.max_update", "Did you mean `max_updates`"]),
        (["small.yaml", "training.max_updates=many"], ["must be a whole number", "many"]),
        (["small.yaml", "training.learning_rate=nan"], ["training.learning_rate", "finite"]),
        (["small.yaml", "training.seed=99999999999999999999"], ["training.seed"]),
        (["small.yaml", "data.directory=nowhere"], ["nowhere: there are no prepared data", "sparsenmt prepare"]),
        (["small.yaml", "data.directory=corpus"], ["corpus: there are no prepared data"]),
        (["small.yaml", "data.directory=model"], ["model: there are no prepared data"]),
        (["small.yaml", "directory=small.yaml"], ["small.yaml: this is a file"]),
        (["small.yaml", "directory=small.yaml/x"], ["small.yaml/x: cannot be created"]),
        (["small.yaml", "directory=corpus"], ["corpus: the model directory exists and holds something else"]),
        (["small.yaml", "directory=prepared"], ["prepared: this is not a model directory"]),
        (
            ["small.yaml", "training.seed=2", "model.norm=post"],
            ["model: ", "another recipe", "training.seed is 2 instead of 1", 'model.norm is "post" instead of "pre"'],
        ),
        (
            ["small.yaml", "directory=new", "data.tokenizer.vocabulary_size=160"],
            ["prepared with other settings: data.tokenizer.vocabulary_size is 160 instead of 150", "sparsenmt prepare"],
        ),
        (["small.yaml", "directory=new", "data.filters.max_length=9"], ["data.filters.max_length is 9 instead of 256"]),
        (["small.yaml", "--from", "model"], ["model: the run began without --from", "Leave --from out"]),
        (["small.yaml", "directory=new", "--from", "nowhere"], ["nowhere: there is no such model directory"]),
        (["small.yaml", "directory=new", "--from", "corpus"], ["corpus: this is not a model directory"]),
        (
            ["small.yaml", "directory=new", "--from", "model", "model.dimension=64"],
            ["model/weights.safetensors", "do not fit the recipe", "(32,) instead of (64,)"],
        ),
        (
            ["small.yaml", "directory=new", "model.positions=learned", "model.max_positions=8"],
            ["model.max_positions", "only 8 learned positions"],
        ),
        ([], ["RECIPE"]),
    ],
)
def test_mistakes(refused: Refused, arguments: list[str], messages: list[str]) -> None:
    shown = refused("train", *arguments)
    for message in messages:
        assert message in shown


def test_a_device_that_is_not_there(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device" in refused("train", "small.yaml", "directory=new", "training.device=cuda")


def test_text_that_changed_since_prepare(refused: Refused, workspace: Path) -> None:
    for language in ("en", "de"):
        with (workspace / f"corpus/train.{language}").open("ab") as stream:
            stream.write(b"more\n")
    assert "train.en is not the text that was prepared" in refused("train", "small.yaml", "directory=new")


@pytest.mark.parametrize("keep_time", [False, True])
def test_text_of_the_same_size_that_changed_since_prepare(refused: Refused, workspace: Path, keep_time: bool) -> None:
    """Also if a program gave the file its old time again, as `rsync --times` does."""
    path = workspace / "corpus/train.de"
    stat, content = path.stat(), path.read_bytes()
    path.write_bytes(content.swapcase())
    if keep_time:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert "train.de is not the text that was prepared" in refused("train", "small.yaml", "directory=new")
    path.write_bytes(content)


def test_text_that_was_only_copied_is_the_same_text(command: Run, workspace: Path) -> None:
    """Its times are others, so that its contents are compared."""
    for path in (workspace / "corpus").iterdir():
        path.write_bytes(path.read_bytes())
    assert "nothing is left to do" in command("train", "small.yaml").err


def test_data_that_an_older_version_prepared(command: Run, workspace: Path) -> None:
    """Their manifest has no times of the texts."""
    path = workspace / "prepared/manifest.json"
    manifest = read_sealed(path)
    write_sealed(path, {**manifest, "inputs": [{**each, "stamp": None} for each in manifest["inputs"]]})
    assert "nothing is left to do" in command("train", "small.yaml").err


def test_moved_text_is_the_same_text(command: Run, workspace: Path) -> None:
    (workspace / "corpus").rename(workspace / "elsewhere")
    recipe = (workspace / "small.yaml").read_text(encoding="utf-8").replace("corpus/", "elsewhere/")
    (workspace / "small.yaml").write_text(recipe, encoding="utf-8")
    (workspace / "model").rename(workspace / "moved")
    assert "nothing is left to do" in command("train", "small.yaml", "directory=moved").err


@pytest.mark.parametrize(
    "name", ["manifest.json", "tokenizers/shared.model", "train-0/source.bin", "dev/meta.json", "dev.source.txt"]
)
def test_damaged_prepared_data(refused: Refused, workspace: Path, name: str) -> None:
    path = workspace / "prepared" / name
    path.write_bytes(path.read_bytes()[:-3])
    assert f"prepared/{name}" in refused("train", "small.yaml", "directory=new")


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "random.safetensors", "progress.json", "manifest.json"]
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_damaged_checkpoint(command: Run, workspace: Path, name: str, ended: bool) -> None:
    """It is named and set aside, and what it held is done again from the one before: the same weights."""
    weights = workspace / "model/weights.safetensors"
    before = weights.read_bytes()
    if not ended:
        weights.unlink()
    checkpoint = workspace / "model/checkpoints/update-00000012"
    content = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    (checkpoint / name).write_bytes(content[name][: len(content[name]) // 2])
    result = command("train", "small.yaml")
    assert result.code == 0 and f"warning: model/checkpoints/update-00000012/{name}: " in result.err
    assert "renamed to damaged-update-00000012" in result.err and "resumes after update 8" in result.err
    assert weights.read_bytes() == before
    kept = workspace / "model/checkpoints/damaged-update-00000012"
    assert {path.name for path in kept.iterdir()} == content.keys()
    for part in ("weights.safetensors", "optimizer.safetensors", "random.safetensors"):
        assert (checkpoint / part).read_bytes() == content[part]


def test_all_checkpoints_damaged(command: Run, workspace: Path) -> None:
    """Training would begin anew, and replace the model."""
    for path in (workspace / "model/checkpoints").glob("update-*"):
        (path / "manifest.json").unlink()
    before = (workspace / "model/weights.safetensors").read_bytes()
    for _ in range(2):
        result = command("train", "small.yaml")
        assert result.code == 2 and "a model without checkpoints, which training would replace" in result.err
        assert (workspace / "model/weights.safetensors").read_bytes() == before
    folders = {path.name.partition("-")[0] for path in (workspace / "model/checkpoints").iterdir()}
    assert folders == {"damaged"} and (workspace / "model/metrics.jsonl").stat().st_size


def test_a_directory_that_was_only_begun_is_no_obstacle(command: Run, workspace: Path) -> None:
    shutil.copytree(workspace / "model/tokenizers", workspace / "new/tokenizers")
    assert command("train", "small.yaml", "directory=new", "training.max_updates=2").code == 0


def test_a_fault_of_the_validation_shows_before_the_first_update(
    command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("there is no such score today", where="training.validation.metric", hint="Take another.")

    arguments = ["train", "small.yaml", "directory=new", "training.max_updates=6"]
    with monkeypatch.context() as patch:
        patch.setattr("sparsenmt.workflows.training.validation.corpus_scores", fail)
        result = command(*arguments)
    assert result.code == 2 and "training.validation.metric: there is no such score today" in result.err
    assert not [path for path in (workspace / "new").rglob("*") if path.suffix], "nothing is written yet"
    assert command(*arguments, "training.validation.metric=chrf", "decoding.beam_size=2").code == 0


def test_the_validation_before_the_first_update_changes_nothing(
    command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparsenmt.workflows.training import train as workflow

    arguments = ["train", "small.yaml", "training.max_updates=6", "model.dropout.residual=0.2"]
    drawn: list[Tensor] = []

    def drawing(*given: Any, **options: Any) -> Callable[..., Mapping[str, float]]:
        drawn.append(torch.rand(3))
        return make(*given, **options)

    make = workflow.make_validator
    monkeypatch.setattr(workflow, "make_validator", drawing)
    assert command(*arguments, "directory=with").code == 0 and len(drawn) == 2  # for the trial, and for training
    monkeypatch.setattr(workflow, "_try_validation", lambda *_: None)
    assert command(*arguments, "directory=without").code == 0 and len(drawn) == 3
    one, other = (load_file(workspace / name / "weights.safetensors") for name in ("with", "without"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_validation_leaves_no_model(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights and the buffers of its searches would be there during the updates that follow."""
    recipe, made = model_directory.read_recipe(workspace / "model"), list[weakref.ref[Transformer]]()
    data, weights = open_data(recipe), load_file(workspace / "model/weights.safetensors")

    def noted(*given: Any, **options: Any) -> Transformer:
        model = build_model(*given, **options)
        made.append(weakref.ref(model))
        return model

    def fail(*given: Any, **options: Any) -> list[str]:
        raise UserError("no metric")

    monkeypatch.setattr(validation, "build_model", noted)
    validate = validation.make_validator(recipe, data, torch.device("cpu"), validation.validation_scoring(recipe, data))
    gc.disable()
    try:
        found = validate(weights)
        assert found == validate(weights) and {"loss", recipe.training.validation.metric} <= found.keys()
        assert [model() for model in made] == [None, None]
    finally:
        gc.enable()
    monkeypatch.setattr(validation, "corpus_scores", fail)
    with pytest.raises(UserError, match="no metric"):
        validate(weights)
    gc.collect()  # the error had the frames
    assert [model() for model in made] == [None, None, None]


def test_a_loss_that_explodes(command: Run, workspace: Path) -> None:
    result = command("train", "small.yaml", "directory=new", "training.learning_rate=1e30")
    assert result.code == 2 and "lower training.learning_rate" in result.err
    assert "demo, lines " in result.err and "training.skip_nonfinite" in result.err
    assert not (workspace / "new/weights.safetensors").exists()


@pytest.mark.thorough
def test_an_interrupt_and_going_on(workspace: Path) -> None:
    arguments = ["train", "small.yaml", "directory=new", "training.max_updates=100000", "training.save_every=2"]
    process = program(*arguments)
    checkpoints = workspace / "new/checkpoints"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("update-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    last = sorted(path.name for path in checkpoints.glob("update-*"))[-1]
    shown = errors.decode().rstrip().split("\n")
    assert shown[-2].endswith(f"interrupted; new: saved after update {int(last[-8:]):,}")
    assert shown[-1] == f"  Resume with: sparsenmt {' '.join(arguments)}"
    assert "Traceback" not in errors.decode()
    process = program(*arguments)
    assert process.stderr is not None
    assert process.stderr.readline() == f"new: resumes after update {int(last[-8:]):,}\n".encode()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and b"terminated" in errors and b"Traceback" not in errors, errors.decode()


def test_a_resume_with_other_numerics_says_so(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line; without a change nothing is said."""

    def run(updates: int) -> list[str]:
        result = command("train", "small.yaml", "directory=new", f"training.max_updates={updates}")
        assert result.code == 0
        return [line for line in result.err.splitlines() if "last digits" in line]

    if kernels() is None:
        pytest.skip("no compiler")
    begin = "warning: its last digits will differ from those of an undisturbed run: "
    assert run(4) == run(6) == []
    monkeypatch.setenv(SWITCH, "0")
    assert run(8) == [f"{begin}compiled kernels are not in use now"]
    assert run(10) == []
    monkeypatch.setattr(torch, "__version__", "3.0")
    assert run(12) == [f'{begin}torch is "3.0" instead of "{torch.version.__version__}"']
    progress = json.loads((workspace / "new/checkpoints/update-00000012/progress.json").read_bytes())
    assert progress["numerics"]["kernels"] is None and progress["numerics"]["threads"] == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.thorough
def test_messages_that_cannot_be_printed_do_not_end_training(workspace: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = program("train", "small.yaml", "directory=new", "training.max_updates=6", stderr=full)
        assert process.wait(timeout=120) == 0
        assert process.stdout is not None
        process.stdout.close()
    assert (workspace / "new/weights.safetensors").exists() and (workspace / "new/checkpoints/update-00000006").exists()
    kinds = [json.loads(line)["kind"] for line in (workspace / "new/metrics.jsonl").read_text().splitlines()]
    assert kinds.count("validation") == 1


def test_average(command: Run, workspace: Path) -> None:
    checkpoints = sorted((workspace / "model/checkpoints").glob("update-*"))[-2:]
    result = command("average", "model", "--last", "2", "--output", "mean")
    assert (result.code, result.out) == (0, b"")
    assert result.err == "mean/weights.safetensors: the mean of 2 checkpoints, updates 8, 12\n"
    first, second, mean = (load_file(path / "weights.safetensors") for path in (*checkpoints, workspace / "mean"))
    for name, value in mean.items():
        assert ((first[name].double() + second[name].double()) / 2 - value.double()).abs().max() < 1e-7
    assert len(command("decode", "mean", stdin=b"a\nb\n").lines) == 2
    assert command("average", "model", "--update", "8", "--update", "8", "--update", "12").code == 0
    assert load_file(workspace / "model/weights.safetensors").keys() == mean.keys()
    in_place = load_file(workspace / "model/weights.safetensors")
    assert all((in_place[name] == value).all() for name, value in mean.items())


def test_a_mean_without_a_damaged_checkpoint_says_so(command: Run, workspace: Path) -> None:
    """An older one, so that the run has nothing to do again: an even older one takes its place in the mean."""
    damaged = workspace / "model/checkpoints/update-00000008"
    (damaged / "weights.safetensors").write_bytes(b"short")
    (workspace / "model/weights.safetensors").unlink()
    result = command("train", "small.yaml", "training.average_last=2", "training.choose_average=none")
    warning = "the checkpoint of update 8 is damaged: the weights are without it"
    assert result.code == 0 and f"warning: model: {warning}" in result.err and "updates 6, 12" in result.err
    assert model_directory.read_manifest(workspace / "model")["warnings"] == [warning]
    result = command("average", "model", "--output", "mean")
    assert warning in result.err and model_directory.read_manifest(workspace / "mean")["warnings"] == [warning]
    assert command("slice", "mean", "sliced", "--decoder-layers", "1").code == 0
    assert model_directory.read_manifest(workspace / "sliced")["warnings"] == [warning], (
        "its weights are of the same mean"
    )
    result = command("average", "model", "--last", "1")
    assert "damaged" not in result.err and model_directory.read_manifest(workspace / "model")["warnings"] == []


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["nowhere"], ["nowhere: there is no such model directory"]),
        (["corpus"], ["corpus: this is not a model directory"]),
        (["model", "--last", "9"], ["there are only", "Lower --last"]),
        (["model", "--last", "0"], ["--last"]),
        (["model", "--update", "5"], ["no checkpoint of update 5", "12"]),
        (["model", "--update", "12", "--last", "1"], ["exclude each other"]),
        (["model", "--output", "corpus"], ["corpus: the directory exists"]),
        (["model", "--output", "small.yaml"], ["small.yaml: the directory exists"]),
        (["model", "--output", "small.yaml/x"], ["cannot be created"]),
        ([], ["MODEL_DIR"]),
    ],
)
def test_mistakes_of_average(refused: Refused, arguments: list[str], messages: list[str]) -> None:
    shown = refused("average", *arguments)
    for message in messages:
        assert message in shown


def test_average_of_damaged_or_no_checkpoints(command: Run, refused: Refused, workspace: Path) -> None:
    weights = workspace / "model/checkpoints/update-00000012/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:99])
    shown = refused("average", "model", "--output", "mean")
    assert "update-00000012/weights.safetensors: damaged: 99 bytes" in shown and "Remove the checkpoint" in shown
    assert command("average", "model", "--update", "8", "--output", "mean").code == 0
    assert "no checkpoints" in refused("average", "mean")
    assert "without checkpoints" in refused("train", "small.yaml", "directory=mean")


def test_deterministic_algorithms_are_those_of_the_run(
    command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what decides them is in its recipe."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    seen = []
    step = Trainer._step

    def watched(*arguments: Any) -> None:
        seen.append(torch.are_deterministic_algorithms_enabled())
        step(*arguments)

    monkeypatch.setattr(Trainer, "_step", watched)
    command("train", "small.yaml", "directory=exact", "training.deterministic=true", "training.max_updates=2")
    assert seen == [True, True] and not torch.are_deterministic_algorithms_enabled()
    recorded = [model_directory.read_recipe(workspace / name).training.deterministic for name in ("exact", "model")]
    assert recorded == [True, False]
