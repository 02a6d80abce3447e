"""`sparsenmt finetune-l0`: a dense model gets gates, trains on, and is compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model_directory import read_manifest, read_recipe
from sparsenmt.data.text import read_lines
from sparsenmt.errors import UserError
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import compare
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import Recipe
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.workflows.training import continue_training
from sparsenmt.workflows.training import finetune as finetuning
from sparsenmt.workflows.training.finetune import FinetuneRequest
from tests.analysis.test_plots import check_picture
from tests.commands.support import Diagram, Run

GATES = ("memory.output.0.bias", "memory.output.0.weight")


def entries(directory: Path, kind: str) -> list[dict[str, float]]:
    found = (json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines())
    return [entry for entry in found if entry["kind"] == kind]


def test_updates_and_moments_go_on(command: Run, workspace: Path) -> None:
    result = command("finetune-l0", "model", "--weight", "0.3", "--updates", "4", "-o", "gated", "training.log_every=2")
    assert result.code == 0, result.err
    recipe, dense = read_recipe(Path("gated")), find_checkpoints(Path("model"))[-1]
    assert recipe.model.memory[0].name == "l0drop" and recipe.losses["l0"].weight == 0.3
    assert recipe.training.max_updates == 16
    (newest,) = find_checkpoints(Path("gated"))
    assert newest.update == 16
    assert [entry["update"] for entry in entries(Path("gated"), "train")] == [14, 16]
    assert {"l0", "l0_weight", "l0_closed", "l0_partial"} <= entries(Path("gated"), "train")[0].keys()
    assert "l0_closed" in entries(Path("gated"), "validation")[-1]
    before, after = dense.optimizer(), newest.optimizer()
    assert {float(after[name] - before[name]) for name in before if name.endswith("/step")} == {4.0}
    assert after["memory.output.0.weight/step"] == 4
    assert read_manifest(Path("gated"))["started_from"]["path"] == str(dense.path)
    again = command("finetune-l0", "model", "--weight", "0.3", "--updates", "4", "-o", "gated", "training.log_every=2")
    assert again.code == 0 and "nothing is left to do" in again.err


def test_a_schedule_counts_from_the_beginning_of_the_fine_tuning(command: Run, workspace: Path) -> None:
    arguments = ["--target", "0.5", "--ramp", "3", "--updates", "4", "-o", "gated", "training.log_every=1"]
    result = command("finetune-l0", "model", *arguments)
    assert result.code == 0, result.err
    target = read_recipe(Path("gated")).losses["l0"].target
    assert target is not None and not isinstance(target, float)
    assert (target.from_, target.to, target.steps, target.after) == (0.0, 0.5, 3, 12)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_after_a_schedule_that_fell_to_zero_the_rate_is_constant(
    command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    assert command("train", "small.yaml", "directory=fallen", f"training.schedule={schedule}").code == 0
    arguments = ["finetune-l0", "fallen", "--target", "0.4", "--updates", "4", "training.log_every=1"]
    with monkeypatch.context() as earlier:
        earlier.setattr(continue_training, "rate_after", lambda training, start: None)
        assert command(*arguments, "-o", "earlier").code == 0
    assert entries(Path("earlier"), "train")[-1]["rate"] < 1e-3, "an earlier version let it fall again"
    again = command(*arguments, "-o", "earlier")
    assert again.code == 0 and "nothing is left to do" in again.err and "learning rate" not in again.err
    result = command(*arguments, "-o", "gated")
    note = f"after its {schedule} schedule the model is trained on with a constant learning rate of 0.00173, 58% of the"
    assert result.code == 0 and result.err.count(note) == 1
    rates = [entry["rate"] for entry in entries(Path("gated"), "train")]
    assert rates == pytest.approx([3e-3 * (4 / 12) ** 0.5] * 4)
    assert "nothing is left to do" in command(*arguments, "-o", "gated").err


def test_few_updates_for_the_share_to_close_are_told(command: Run, workspace: Path) -> None:
    warning = "warning: 1 updates are few to close 40% of the gates of a model of 12 updates"
    arguments = ["finetune-l0", "model", "--updates", "1"]
    assert warning in command(*arguments, "--target", "0.4", "-o", "few").err
    for given in (["--target", "0.1"], ["--weight", "0.3"], ["--target", "0.4", "--updates", "2"]):
        assert "are few" not in command(*arguments, *given, "-o", f"run{given[1]}{len(given)}").err


def test_restart_begins_with_the_final_weights_at_update_0(command: Run, workspace: Path) -> None:
    result = command("finetune-l0", "model", "--weight", "0.3", "--updates", "2", "-o", "gated", "--restart")
    assert result.code == 0, result.err
    assert "does not have memory.output.0.bias, memory.output.0.weight: initial values" in result.err
    (newest,) = find_checkpoints(Path("gated"))
    assert newest.update == 2 and newest.optimizer()[GATES[0] + "/step"] == 2


def test_no_updates_only_add_the_filter(command: Run, workspace: Path) -> None:
    result = command("finetune-l0", "model", "--updates", "0", "-o", "gated", "model.memory.0.init_log_alpha=9")
    assert result.code == 0, result.err
    dense, gated = load_file("model/weights.safetensors"), load_file("gated/weights.safetensors")
    assert sorted(gated.keys() - dense.keys()) == list(GATES)
    assert all(torch.equal(dense[name], gated[name]) for name in dense)
    assert open_model("gated").recipe.model.memory[0].options["init_log_alpha"] == 9
    outputs = [command("decode", name, "--input", "corpus/test.en").out for name in ("model", "gated")]
    assert outputs[0] == outputs[1]  # all gates are open
    again = ["finetune-l0", "model", "--updates", "0", "-o", "gated"]
    assert "nothing is left to do" in command(*again, "model.memory.0.init_log_alpha=9").err
    assert "gated: the directory exists" in command(*again).err


@pytest.mark.thorough
def test_a_sweep_goes_on_and_compares(command: Run, workspace: Path, drawn: dict[str, list[Diagram]]) -> None:
    arguments = ["finetune-l0", "model", "--weight", "0.1,0.4", "--target", "0.3", "--updates", "2", "--baseline"]
    arguments += ["-o", "sweep", "data.test={source: corpus/test.en, target: corpus/test.de}"]
    # Gates near their threshold, and a metric that is not 0 after a few updates: no two points of the plot are equal.
    arguments += ["model.memory.0.init_log_alpha=-2.4", "training.validation.metric=chrf"]
    result = command(*arguments)
    assert result.code == 0, result.err
    names = ["dense", "weight-0.1", "weight-0.4", "target-0.3"]
    report = json.loads(Path("sweep/sweep.json").read_text())
    rows = report["tables"]["sweep"]
    assert [(row["model"], row["set"]) for row in rows] == [(name, s) for name in names for s in ("dev", "test")]
    assert rows[0]["sparsity"] is None and rows[0]["against_first"] == 0 and rows[0]["p_value"] is None
    references = list(read_lines("corpus/test.de"))
    outputs = {name: command("decode", f"sweep/{name}", "-i", "corpus/test.en").lines for name in names}
    for row in rows[3::2]:  # those of the test set
        (expected,) = compare(outputs[row["model"]], outputs["dense"], [references], ScoringSettings(["chrf"]))
        found = row["quality"], row["against_first"], row["p_value"]
        assert found == (expected.system.value, expected.difference.value, expected.p_value)
        assert (row["low"], row["high"]) == (expected.difference.low, expected.difference.high)
        scored = command(
            "score", "--model", f"sweep/{row['model']}", "--source", "corpus/test.en", "-r", "corpus/test.de"
        )
        assert f"sparsity rate {row['sparsity']:.1%}" in scored.out.decode()
    assert all(name in result.out.decode() for name in names)
    assert "weights: the means of the checkpoints of updates: dense 14; " in result.out.decode()
    csv = Path("sweep/sweep.csv").read_text().splitlines()
    assert len(csv) == 1 + len(rows) and csv[0].startswith("model,set,sentences,metric,quality")
    check_picture(Path("sweep/sweep.png"))
    for kind, diagram in zip(("dev", "test"), drawn["sweep.png"], strict=True):
        measured = [(row["sparsity"] or 0.0, row["quality"]) for row in rows if row["set"] == kind]
        assert len(measured) == 4 and len(set(measured)) == 4, "models that differ"
        series = {str(row["model"]): [(row["sparsity"] or 0.0, row["quality"])] for row in rows if row["set"] == kind}
        level = series["dense"][0][1]
        series["chrF2 of dense"] = [(0.0, level), (1.0, level)]
        assert diagram == Diagram("", "sparsity rate", f"chrF2 on the {kind} set", series)
    digest = {name: read_manifest(Path("sweep") / name) for name in names}
    shutil.rmtree("sweep/weight-0.4")  # as if it had never been begun
    again = command(*arguments)
    assert again.code == 0 and again.err.count("nothing is left to do") == 3
    assert again.out == result.out
    assert digest["weight-0.1"] == read_manifest(Path("sweep/weight-0.1"))


def test_of_several_processes_only_the_first_one_writes(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others train with it; what one process does they would do at the same time, in the same files."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(finetuning, "train", lambda recipe, start: None)
    monkeypatch.setattr(finetuning, "Experiment", lambda *_, **__: pytest.fail("this process evaluates as well"))
    found = finetuning.finetune(FinetuneRequest(Path("model"), weights=(0.1, 0.3), updates=4, output=Path("gated")))
    assert list(found.models) == ["weight-0.1", "weight-0.3"] and (found.report, found.files) == (None, [])

    met: list[int] = []
    monkeypatch.setattr(Workers, "join", lambda device: Workers(1, 2))
    monkeypatch.setattr(Workers, "barrier", lambda workers: met.append(workers.rank))
    finetuning.finetune(FinetuneRequest(Path("model"), updates=0, output=Path("gated")))
    assert met == [1] and not Path("gated").exists()


@pytest.mark.parametrize("numbers", [(0.3, 0.3), (0.3, 0.30000001)])
def test_numbers_whose_runs_would_share_a_directory_are_refused(
    numbers: tuple[float, ...], command: Run, workspace: Path
) -> None:
    for option, given in (("--target", {"targets": numbers}), ("--weight", {"weights": numbers})):
        request = FinetuneRequest(Path("model"), updates=4, output=Path("gated"), **given)
        with pytest.raises(UserError, match="is in the list twice") as refused:
            finetuning.finetune(request)
        assert refused.value.where == option and not Path("gated").exists()
        result = command("finetune-l0", "model", option, ",".join(map(repr, numbers)), "--updates", "4", "-o", "gated")
        assert result.code == 2 and f"{option}: 0.3 is in the list twice" in result.err


def test_a_recipe_with_filters(command: Run, workspace: Path) -> None:
    Path("gated.yaml").write_text(
        "base: small.yaml\nname: gated\ndirectory: gated\nmodel: {memory: [{name: l0drop}]}\n"
        "losses: {l0: {target: {from: 0.1, to: 0.5, steps: 2}}}\ntraining: {max_updates: 3}\n"
    )
    keep = ["training.save_every=1", "training.choose_average=none", "--keep", "average", "training.log_every=1"]
    result = command("finetune-l0", "model", "gated.yaml", *keep)
    assert result.code == 0, result.err
    recipe = read_recipe(Path("gated"))
    assert recipe.training.max_updates == 15 and recipe.training.average_last == 5
    assert "the mean of 3 checkpoints, updates 13, 14, 15" in result.err
    assert result.err.count("closed 0.0% (target 50%), ") == 2 and "closed 0.0% (target 30%), " in result.err


def test_training_from_scratch_with_a_rising_weight(command: Run, workspace: Path) -> None:
    filters = ["model.memory=[{name: l0drop}]", "losses.l0.weight={from: 0, to: 0.2, steps: 4}"]
    result = command("train", "small.yaml", "directory=scratch", "training.log_every=2", *filters)
    assert result.code == 0, result.err
    weights = [entry["l0_weight"] for entry in entries(Path("scratch"), "train")]
    assert weights == pytest.approx([0.025, 0.125, 0.2, 0.2, 0.2, 0.2])
    scored = command("score", "--model", "scratch", "--source", "corpus/dev.en", "--reference", "corpus/dev.de")
    assert "sparsity rate" in scored.out.decode()


def test_an_interrupted_run_goes_on_from_its_own_checkpoints(command: Run, workspace: Path) -> None:
    arguments = ["finetune-l0", "model", "--weight", "0.3", "--updates", "4", "training.save_every=2"]
    assert command(*arguments, "-o", "whole").code == 0
    assert command(*arguments[:-2], "2", "training.save_every=2", "-o", "parts").code == 0
    result = command(*arguments, "-o", "parts")
    assert result.code == 0 and "resumes after update 14" in result.err, result.err
    training = read_recipe(Path("parts")).training
    assert (training.average_last, training.choose_average) == (1, "none"), "the last one, not the best one"
    whole, parts = (load_file(f"{name}/weights.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weight=-0.1", "--updates", "2"], "--weight: '-0.1' is not a list of numbers of at least 0"),
        (["--weight", "0.1,x", "--updates", "2"], "--weight: '0.1,x' is not a list of numbers of at least 0"),
        (["--target", "1", "--updates", "2"], "--target: '1' is not a list of numbers between 0 and 1"),
        (["--target", "0", "--updates", "2"], "--target: '0' is not a list of numbers between 0 and 1"),
        (["--weight", "0.3"], "--updates: the number of updates is missing"),
        (["--updates", "3"], "--target: neither the share of gates to close nor the weight"),
        (["small.yaml", "--updates", "3"], "model.memory: the recipe has no filter to train"),
        (["losses.l0.weight=-1", "--updates", "3"], "losses.l0.weight"),
        (["losses.l0={target: 1.5}", "--updates", "3"], "losses.l0.target: must be between 0 and 1, not 1.5"),
        (["losses.l0={target: 0.5, weight: 1}", "--updates", "3"], "losses.l0.weight: cannot be combined with"),
    ],
)
def test_bad_input(refused: Callable[..., str], arguments: list[str], message: str) -> None:
    assert message in refused("finetune-l0", "model", *arguments, "-o", "gated")


def test_a_target_by_an_override(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Recipe] = []
    monkeypatch.setattr(finetuning, "train", lambda recipe, start: made.append(recipe))
    for overrides in ("losses.l0.target=0.4",), ("losses={l0: {target: 0.4}}",):
        finetuning.finetune(FinetuneRequest(Path("model"), overrides=overrides, updates=2, output=Path("gated")))
    assert [(each.losses["l0"].target, each.losses["l0"].weight) for each in made] == [(0.4, None)] * 2


def test_a_model_with_gates_is_refused(command: Run, refused: Callable[..., str], workspace: Path) -> None:
    assert command("finetune-l0", "model", "--updates", "0", "-o", "gated").code == 0
    message = refused("finetune-l0", "gated", "--weight", "0.3", "--updates", "2")
    assert "gated: the model already has gates" in message


def test_a_model_without_checkpoints_needs_restart(refused: Callable[..., str], workspace: Path) -> None:
    shutil.rmtree("model/checkpoints")
    assert "Use --restart" in refused("finetune-l0", "model", "--weight", "0.3", "--updates", "2")


def test_other_vocabularies_are_refused(command: Run, refused: Callable[..., str], workspace: Path) -> None:
    other = ["data.directory=other", "data.tokenizer.vocabulary_size=140"]
    assert command("prepare", "small.yaml", *other).code == 0
    message = refused("finetune-l0", "model", "--weight", "0.3", "--updates", "2", *other)
    assert "the prepared data have other vocabularies than model" in message
