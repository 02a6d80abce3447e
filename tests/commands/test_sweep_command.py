"""`sparsenmt sweep`: variants are trained, go on after an interrupt, are measured once, and are laid out as a table."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from safetensors.torch import load_file

from sparsenmt.assemble.model_directory import read_manifest, read_recipe, weights_after
from sparsenmt.errors import UserError
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.loop import Trainer
from sparsenmt.workflows.evaluation import evaluate as evaluating
from sparsenmt.workflows.training import sweep as sweeping
from tests.analysis.test_plots import check_picture
from tests.commands.support import Diagram, Run

SWEEP = """\
name: tiny
title: Attended positions
directory: sweep
recipe: small.yaml
from: model
updates: 2
set:
  data.test: {source: corpus/test.en, target: corpus/test.de}
  training.log_every: 1
metrics: [chrf]
variants:
  - name: full
    at: {method: full, k: full}
  - at: {method: window, k: [4, 2]}
    set: {model.attention.encoder_self.pattern: {name: "${method}", k: "${k}"}}
  - name: disabled
    at: {method: head 2 disabled, k: full}
    from: full
    updates: 0
    set:
      model.attention.encoder_self.heads.disabled: [2]
      training.schedule: linear
      training.max_updates: 40
      training.warmup_updates: 20  # of a run that does not take place
table: {rows: method, columns: k, baseline: {method: full, k: full}}
"""
NAMES = ["full", "window-4", "window-2", "disabled"]


@pytest.fixture
def sweep(workspace: Path) -> Path:
    path = workspace / "sweep.yaml"
    path.write_text(SWEEP, encoding="utf-8", newline="\n")
    return path


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories of the models that translate, as they do."""
    found: list[str] = []
    real = evaluating._new_evaluation

    def noting(bundle: object, *, directory: Path, **rest: object) -> object:
        found.append(directory.name)
        return real(bundle, directory=directory, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluating, "_new_evaluation", noting)
    return found


def test_variants_are_trained_measured_and_laid_out(
    command: Run, sweep: Path, translated: list[str], drawn: dict[str, list[Diagram]]
) -> None:
    result = command("sweep", "sweep.yaml")
    assert result.code == 0, result.err
    assert translated == NAMES
    full, window, disabled = (read_recipe(Path("sweep") / name) for name in ("full", "window-2", "disabled"))
    assert full.training.max_updates == window.training.max_updates == 14  # 12 of the model, and 2
    assert (full.name, full.directory) == ("tiny-full", "sweep/full")
    assert window.model.attention.encoder_self.pattern.options == {"k": 2}
    assert disabled.model.attention.encoder_self.heads.disabled == [2]
    dense = find_checkpoints(Path("model"))[-1]
    assert read_manifest(Path("sweep/full"))["started_from"]["path"] == str(dense.path)
    assert {
        float(value) for name, value in find_checkpoints(Path("sweep/full"))[-1].optimizer().items() if "/step" in name
    } == {14.0}
    before, after = (load_file(f"sweep/{name}/weights.safetensors") for name in ("full", "disabled"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert weights_after(Path("sweep/disabled")) == 0
    lines = result.lines
    assert lines[:4] == ["Attended positions", "", "chrF2, test", lines[3]] and lines[3].split() == [
        "method",
        "full",
        "4",
        "2",
    ]
    assert [line.split()[0] for line in lines[5:8]] == ["full", "window", "head"]
    with open("sweep/table.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["variant"] for row in rows] == NAMES and [row["k"] for row in rows] == ["full", "4", "2", "full"]
    assert rows[0]["difference"] == "" and 0 < float(rows[1]["p_value"]) <= 1
    attended = [float(row["attended"]) for row in rows]
    assert attended[0] > attended[1] > attended[2]
    assert float(rows[0]["training_speed"]) > 0 and rows[0]["parameters"] == rows[1]["parameters"]
    assert result.out.decode() == Path("sweep/table.txt").read_text()
    check_picture(Path("sweep/table.png"))
    (diagram,) = drawn["table.png"]
    assert (diagram.title, diagram.x_label, diagram.y_label) == ("", "k", "chrF2, test")
    quality = {(row["method"], row["k"]): float(row["quality"]) for row in rows}
    for method in ("full", "window", "head 2 disabled"):
        places, values = zip(*diagram.series.pop(method), strict=True)
        expected = [quality.get((method, k), math.nan) for k in ("full", "4", "2")]
        assert places == (0, 1, 2) and values == pytest.approx(expected, nan_ok=True)
    assert not diagram.series


@pytest.mark.thorough
def test_again_it_prints_the_same_without_work(command: Run, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = command("sweep", "sweep.yaml")
    written = Path("sweep/table.json").read_bytes()
    for name in ("translate_aligned", "compare"):
        monkeypatch.setattr(f"sparsenmt.workflows.evaluation.evaluate.{name}", None)
    monkeypatch.setattr("sparsenmt.workflows.training.sweep.train", None)
    shutil.rmtree("model/checkpoints")  # what they began from is not needed any more
    for flags in ([], ["--table"]):
        again = command("sweep", "sweep.yaml", *flags)
        assert again.code == 0, again.err
        assert again.out == first.out and Path("sweep/table.json").read_bytes() == written
    listed = command("sweep", "sweep.yaml", "--list").lines
    assert [line.split() for line in listed] == [[name, "finished", f"sweep/{name}"] for name in NAMES]


@pytest.mark.thorough
def test_a_new_variant_does_not_evaluate_the_others(command: Run, sweep: Path, translated: list[str]) -> None:
    assert command("sweep", "sweep.yaml", "--only", "full").code == 0
    table = command("sweep", "sweep.yaml", "--table")
    assert table.code == 0 and "... 3 variants to come" in table.lines
    assert command("sweep", "sweep.yaml", "--only", "window-*").code == 0
    assert translated == ["full", "window-4", "window-2"]


def test_other_weights_are_evaluated_again(command: Run, sweep: Path, translated: list[str]) -> None:
    only = ["sweep", "sweep.yaml", "--only", "full"]
    assert command(*only).code == 0
    assert command("average", "sweep/full", "--update", "14").code == 0  # the same numbers: nothing changes
    assert command(*only).code == 0 and translated == ["full"]
    assert command(*only, "training.save_every=1").code == 0 and translated == ["full"]
    assert command("average", "sweep/full", "-o", "other", "--last", "1").code == 0
    shutil.copy("model/weights.safetensors", "sweep/full/weights.safetensors")
    assert command("compare", "sweep/full", "--no-speed", "-m", "chrf").code == 0
    assert translated == ["full", "full"]


def test_an_interrupted_sweep_goes_on(command: Run, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("sweep", "sweep.yaml", "--only", "window-*", "-o", "whole").code == 0
    real, updates = Trainer._update, 0

    def stopping(self: Trainer, *arguments: object) -> bool:
        nonlocal updates
        updates += 1
        if updates == 4:  # the second of the second variant
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "_update", stopping)
    arguments = ["sweep", "sweep.yaml", "--only", "window-*"]
    result = command(*arguments)
    assert result.code == 143
    assert result.err.split("\n")[-2] == "  Resume with: sparsenmt sweep sweep.yaml --only 'window-*'"
    states = {line.split()[0]: line for line in command("sweep", "sweep.yaml", "--list").lines}
    assert "finished" in states["window-4"] and "after update 13" in states["window-2"]
    assert "not begun" in states["full"]
    result = command(*arguments)
    assert result.code == 0 and "sweep/window-2: resumes after update 13" in result.err
    for name in ("window-4", "window-2"):
        whole, parts = (load_file(f"{folder}/{name}/weights.safetensors") for folder in ("whole", "sweep"))
        assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_one_of_several_processes_does_not_go_on_alone(
    command: Run, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait in the variant that failed: their next values would be exchanged with another variant's."""

    def fail(*_: object, **__: object) -> None:
        tried.append(1)
        raise UserError("is full", where="disk", hint="Free it.")

    tried: list[int] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(sweeping, "train", fail)
    result = command("sweep", "sweep.yaml")
    assert result.code == 2 and "error: disk: is full" in result.err and tried == [1]


def test_one_that_fails_does_not_stop_the_others(command: Run, sweep: Path, translated: list[str]) -> None:
    Path("sweep/window-4").mkdir(parents=True)
    Path("sweep/window-4/notes.txt").write_text("mine")
    result = command("sweep", "sweep.yaml")
    assert result.code == 2
    assert "[2/4] window-4: failed: sweep/window-4: the model directory exists and holds something else" in result.err
    assert "error: sweep.yaml: 1 of 4 variants failed: window-4" in result.err
    assert translated == ["full", "window-2", "disabled"]
    assert "... 1 variant to come" in result.lines


def test_seeds_share_a_cell(command: Run, sweep: Path) -> None:
    text = SWEEP.replace("metrics:", "seeds: [1, 7]\nmetrics:").partition("  - name: disabled")[0]
    sweep.write_text(text + "table: {rows: method, columns: k}\n", encoding="utf-8", newline="\n")
    result = command("sweep", "sweep.yaml", "--only", "full*")
    assert result.code == 0, result.err
    assert [path.name for path in sorted(Path("sweep").glob("full*"))] == ["full", "full-seed7"]
    assert read_recipe(Path("sweep/full-seed7")).training.seed == 7
    assert "±" in result.lines[5] and "mean ± sample standard deviation over 2 seeds" in result.lines
    (row,) = json.loads(Path("sweep/table.json").read_text())["tables"]["seeds"]
    rows = json.loads(Path("sweep/table.json").read_text())["tables"]["variants"]
    values = [each["quality"] for each in rows]
    assert (row["variant"], row["seeds"], row["mean"]) == ("full", 2, pytest.approx(mean(values)))
    assert row["deviation"] == pytest.approx(stdev(values))
    assert Path("sweep/table.seeds.csv").read_text().startswith("variant,method,k,set,metric,seeds,mean,deviation,")
    written = sweep.read_text(encoding="utf-8")
    sweep.write_text(f"{written}significance: randomization\nresamples: 60\n", encoding="utf-8", newline="\n")
    for change in ("training.seed=3", "training={seed: 3}"):
        refused = command("sweep", "sweep.yaml", "--table", change)
        assert refused.code == 2 and f"override '{change}': the sweep has `seeds`, which give the seed" in refused.err


def test_without_a_layout_the_first_variant_is_the_baseline(command: Run, sweep: Path) -> None:
    sweep.write_text(SWEEP.partition("table:")[0], encoding="utf-8", newline="\n")
    result = command("sweep", "sweep.yaml", "--only", "full", "--only", "window-2")
    assert result.code == 0, result.err
    rows = {row["variant"]: row for row in json.loads(Path("sweep/table.json").read_text())["tables"]["variants"]}
    assert rows["full"]["difference"] is None and rows["full"]["p_value"] is None
    assert rows["window-2"]["difference"] == pytest.approx(rows["window-2"]["quality"] - rows["full"]["quality"])
    assert 0 < rows["window-2"]["p_value"] <= 1
    named = "difference, p value: against the first variant, with fewer than 30 segments (20): "
    few = "paired approximate randomization, 1,000 resamples; no interval"
    assert named + few in result.lines and 0 < rows["window-2"]["sacrebleu_p"] <= 1
    with sweep.open("a", encoding="utf-8", newline="\n") as stream:
        stream.write("significance: randomization\nresamples: 60\n")
    again = command("sweep", "sweep.yaml", "--table")
    named += few.replace("1,000", "60")
    assert again.code == 0 and named in again.lines, again.err


def test_from_scratch_the_data_are_prepared_and_checkpoints_go(command: Run, sweep: Path) -> None:
    sweep.write_text(
        "name: tiny\ndirectory: sweep\nrecipe: small.yaml\nsets: [dev]\ncheckpoints: remove\n"
        "set: {training.max_updates: 2, data.directory: fresh}\n"
        "variants:\n  - {name: one}\n  - {name: two, from: one, updates: 2}\n",
        encoding="utf-8",
        newline="\n",
    )
    result = command("sweep", "sweep.yaml")
    assert result.code == 0, result.err
    assert Path("fresh/manifest.json").is_file()
    assert read_recipe(Path("sweep/two")).training.max_updates == 4
    assert not Path("sweep/two/checkpoints").exists()
    assert Path("sweep/one/checkpoints").exists(), "another variant begins from it"
    assert result.lines[0] == "tiny" and result.lines[3].startswith("one ")
    again = command("sweep", "sweep.yaml")
    assert again.code == 0 and again.err.count("finished") == 2 and again.out == result.out


CHANGES = {
    "value": ('k: "${k}"', 'k: "${method}"'),
    "method": ('name: "${method}"', "name: windov"),
    "key": ("training.log_every: 1", "training.log_evry: 1"),
    "recipe": ("small.yaml", "none.yaml"),
    "from": ("from: model", "from: none"),
    "test": (" data.test: {source: corpus/test.en, target: corpus/test.de}", " training.seed: 2"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ("value", [], "encoder_self.pattern.k (variant window-4): must be a whole number, not 'window'"),
        ("value", [], "sweep.yaml:15: model.attention.encoder_self.pattern.k"),
        ("method", [], "sweep.yaml:15: model.attention.encoder_self.pattern.name (variant window-4): there is no"),
        ("key", [], "sweep.yaml:9: training.log_evry (variant full): unknown key"),
        ("recipe", [], "none.yaml (variant full): there is no such file"),
        ("from", [], "none: there is no such model directory"),
        ("test", [], "sweep.yaml: sets: the recipe of variant full has no `data.test`"),
        ("nothing", ["--only", "windw"], "--only: no variant is named 'windw'"),
        ("nothing", ["--only", "disabled"], "variant disabled begins from variant full, which is not finished"),
        ("nothing", ["--list", "--table"], "--list: --list and --table exclude each other"),
        ("nothing", ["training.seed=x"], "override 'training.seed=x': training.seed (variant full): must be a whole"),
    ],
)
def test_bad_input(refused: Callable[..., str], sweep: Path, change: str, arguments: list[str], message: str) -> None:
    assert CHANGES[change][0] in SWEEP
    sweep.write_text(SWEEP.replace(*CHANGES[change]), encoding="utf-8", newline="\n")
    assert message in refused("sweep", "sweep.yaml", *arguments)


def test_variants_cannot_want_different_data_in_one_place(refused: Callable[..., str], sweep: Path) -> None:
    changed = SWEEP.replace('{name: "${method}", k: "${k}"}}', '{name: window, k: 2}, data.filters.max_length: "${k}"}')
    sweep.write_text(changed, encoding="utf-8", newline="\n")
    assert "prepared: the variants full and window-4 want different data there" in refused("sweep", "sweep.yaml")


def test_the_record_says_what_was_trained(command: Run, sweep: Path) -> None:
    assert command("sweep", "sweep.yaml", "--only", "full").code == 0
    record = json.loads(Path("sweep/full/sweep.json").read_text())
    assert record["updates"] == 2 and record["recipe"]["training"]["max_updates"] == 12
    result = command("sweep", "sweep.yaml", "--only", "full", "training.learning_rate=1e-3")
    assert result.code == 2 and "belongs to a run with another recipe: training.learning_rate" in result.err
