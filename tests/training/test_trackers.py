"""Trackers: the numbers of a run go on in the same run after a resume, and no failure of a tracker stops training."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.errors import UserError
from sparsenmt.training import trackers
from sparsenmt.training.trackers import IDS_FILE, TRACKERS, TrackedRun, Trackers, check_installed
from sparsenmt.training.training_log import TrainingLog

LINE = {"loss": 2.5, "learning_rate": 1e-3, "heads": {"alpha": []}, "best": math.nan}


class Recorded:
    """A tracker that keeps what it is told, and fails where it is to."""

    runs: list[Recorded] = []
    failing: frozenset[str] = frozenset()

    def __init__(self, run: TrackedRun) -> None:
        self.run, self.id, self.lines = run, run.id or f"run {len(self.runs)}", list[Any]()
        self.runs.append(self)
        self._do("make")

    def _do(self, call: str) -> None:
        print(f"{call} on stdout")
        if call in self.failing:
            raise RuntimeError(f"no {call}\nat all")

    def log(self, values: Mapping[str, float], update: int) -> None:
        self._do("log")
        self.lines.append((update, dict(values)))

    def close(self) -> None:
        self._do("close")
        self.lines.append("closed")


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS, "wandb", Recorded)
    monkeypatch.setattr(Recorded, "runs", [])
    monkeypatch.setattr(Recorded, "failing", frozenset())


def write_log(directory: Path, initial: int, names: list[str] | None) -> None:
    log = TrainingLog(directory, total=10, initial=initial, trackers=names)
    log.record("train", initial + 1, **LINE)
    log.close()


def test_the_run_of_a_tracker_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for initial in (0, 1, 0):
        write_log(tmp_path, initial, ["wandb"])
    first, second, anew = Recorded.runs
    assert (first.run.id, second.run.id, anew.run.id) == (None, "run 0", None), "the last one begins again"
    numbers = {"train/loss": 2.5, "train/learning_rate": 1e-3}
    assert first.lines == [(1, numbers), "closed"] and second.lines == [(2, numbers), "closed"]
    assert json.loads((tmp_path / IDS_FILE).read_bytes()) == {"wandb": anew.id}
    assert capsys.readouterr().out == "", "stdout belongs to the command"


@pytest.mark.parametrize("call", ["make", "log", "close"])
def test_a_failure_is_a_warning(
    call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorded, "failing", frozenset({call}))
    for update in (0, 1):
        write_log(tmp_path, update, ["wandb"])
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 2
    warnings = [line for line in capsys.readouterr().err.split("\n") if line.startswith("warning")]
    said = f"warning: wandb gets no more of this run, which goes on without it: no {call} at all"
    assert warnings == [said] * 2, "once a run"


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"wandb": 3}'])
def test_a_damaged_file_of_ids_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / IDS_FILE).write_bytes(content)
    Trackers(tmp_path, ["wandb"], 5).close()
    assert Recorded.runs[0].run.id is None


def test_no_tracker(tmp_path: Path) -> None:
    write_log(tmp_path, 0, [])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_missing_package_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    check_installed(None)
    with pytest.raises(UserError) as refused:
        check_installed(["mlflow"])
    assert refused.value.where == "training.trackers" and "sparsenmt[mlflow]" in (refused.value.hint or "")


# The programs themselves, offline, where they are installed


OFFLINE = {
    "wandb": ("WeightsAndBiases", {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}),
    "mlflow": ("MLflow", {"MLFLOW_TRACKING_URI": "file:runs", "MLFLOW_ALLOW_FILE_STORE": "true"}),
    "trackio": ("Trackio", {"TRACKIO_DIR": "database"}),
}


def logged(name: str, directory: Path, run: str) -> list[Any]:
    """The losses that the program has of a run, in the order of their updates."""
    if name == "mlflow":
        from mlflow.tracking import MlflowClient

        history = MlflowClient().get_metric_history(run, "train/loss")
        return sorted((metric.step, metric.value) for metric in history)
    if name == "trackio":
        (path,) = Path("database").glob("*.db")
        with closing(sqlite3.connect(path)) as database:
            rows = database.execute("select step, metrics from metrics where run_name = ? order by step", (run,))
            return [(step, json.loads(metrics)["train/loss"]) for step, metrics in rows]
    return [path.name for path in (directory / "wandb").glob(f"offline-run-*-{run}")]  # `wandb sync` joins them


@pytest.mark.parametrize("name", OFFLINE)
def test_the_program_itself_continues_its_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, variables = OFFLINE[name]
    monkeypatch.chdir(tmp_path)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    pytest.importorskip(name)  # Trackio reads its variables when it is imported
    monkeypatch.setattr(TrackedRun, "settings", lambda run: {"model": {"heads": 4}, "losses": [], "name": "n"})
    monkeypatch.setitem(TRACKERS, name, getattr(trackers, kind))
    directory = tmp_path / "model"
    directory.mkdir()
    ids = []
    for initial in (0, 1):
        if name == "wandb" and initial:
            time.sleep(1.1)  # its folders are named by seconds
        write_log(directory, initial, [name])
        ids.append(json.loads((directory / IDS_FILE).read_bytes())[name])
    assert ids[0] == ids[1] and "warning" not in capsys.readouterr().err
    found = logged(name, directory, ids[0])
    assert len(found) == 2, os.listdir(tmp_path)
    assert name == "wandb" or found == [(1, 2.5), (2, 2.5)]
