"""metrics.jsonl: what is written, and what of it stands after a resume."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sparsenmt.assemble.model_directory import METRICS_FILE
from sparsenmt.training.state import Progress, ValidationResult
from sparsenmt.training.training_log import TrainingLog, training_time, truncate_log


def progress(update: int, *validated: int, skipped: int = 0) -> Progress:
    return Progress(
        update=update, skipped=skipped, validated=[ValidationResult(each, {"loss": 1.0}) for each in validated]
    )


def test_what_will_be_done_again_is_left_out(tmp_path: Path) -> None:
    lines = [f'{{"kind": "train", "update": {update}}}\n' for update in (5, 10, 15)]
    (tmp_path / METRICS_FILE).write_bytes("".join(lines).encode() + b'{"kind": "tr')
    truncate_log(tmp_path, progress(10))
    assert (tmp_path / METRICS_FILE).read_bytes().decode() == "".join(lines[:2])
    truncate_log(tmp_path / "absent", progress(10))
    assert not (tmp_path / "absent").exists()


def test_what_is_done_again_depends_on_its_kind(tmp_path: Path) -> None:
    """A checkpoint of update 10 from before its validation, after one update was left out."""
    entries = [
        {"kind": "skipped", "update": 3, "skipped": 1},
        {"kind": "train", "update": 5},
        {"kind": "validation", "update": 5},
        {"kind": "train", "update": 10},
        {"kind": "validation", "update": 10},
        {"kind": "skipped", "update": 10, "skipped": 2},
    ]
    path = tmp_path / METRICS_FILE
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    for state, kept in (
        (progress(10, 5, skipped=1), [0, 1, 2, 3]),
        (progress(10, 5, 10, skipped=1), [0, 1, 2, 3, 4]),
        (progress(10, 5, 10, skipped=2), [0, 1, 2, 3, 4, 5]),
        (progress(0), []),
    ):
        path.write_bytes(text.encode())
        truncate_log(tmp_path, state)
        assert [json.loads(line) for line in path.read_bytes().splitlines()] == [entries[i] for i in kept]


@pytest.mark.parametrize("line", [b"", b"[]", b"3", b"null", b"{}", b'{"kind": "train"}', b"\xff\xfe", b'{"kind": 1}'])
def test_a_line_that_is_none_is_left_out(tmp_path: Path, line: bytes) -> None:
    good = b'{"kind": "train", "update": 5}\n'
    (tmp_path / METRICS_FILE).write_bytes(line + b"\n" + good + line)
    truncate_log(tmp_path, progress(10))
    assert (tmp_path / METRICS_FILE).read_bytes() == good


def test_other_numbers_than_finite_ones_are_null(tmp_path: Path) -> None:
    reporter = TrainingLog(tmp_path, total=1, initial=0)
    reporter.record("train", 1, loss=float("nan"), norm=float("inf"), rate=0.5)
    reporter.sync()
    reporter.close()
    (line,) = (tmp_path / METRICS_FILE).read_bytes().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) | {"time": 0} == {
        **{"kind": "train", "update": 1, "time": 0},
        **{"loss": None, "norm": None, "rate": 0.5},
    }


def test_without_a_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reporter = TrainingLog(None, total=1, initial=0)
    reporter.record("train", 1, loss=1.0)
    reporter.sync()
    reporter.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_reported_with_the_name_of_the_log(tmp_path: Path) -> None:
    """Closing the log tries again to write what is left of it."""
    log = TrainingLog(tmp_path, total=1, initial=0)
    assert log._file is not None
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), log._file.fileno())
    for action in (lambda: log.record("train", 1, loss=1.0), log.close):
        with pytest.raises(OSError, match="No space left") as caught:
            action()
        assert caught.value.filename == str(tmp_path / METRICS_FILE)


def test_the_time_of_a_run_is_that_of_its_updates(tmp_path: Path) -> None:
    """The last sum, also of a validation after the last line of updates; broken lines do not count."""
    entries: list[dict[str, object]] = [
        {"kind": "train", "update": 5, "time": 100.0, "training_seconds": 4.0},
        {"kind": "validation", "update": 5, "time": 190.0, "seconds": 90.0, "training_seconds": 4.0},
        {"kind": "train", "update": 10, "time": 900.0, "training_seconds": 8.5},
        {"kind": "validation", "update": 12, "time": 990.0, "seconds": 90.0, "training_seconds": 9.5},
        {"kind": "train", "update": 15, "time": 991.0, "training_seconds": None},
    ]
    path = tmp_path / METRICS_FILE
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"kind": "tr')
    assert training_time(tmp_path) == 9.5
    assert training_time(tmp_path / "absent") is None


def test_the_time_of_a_run_with_an_older_log_is_estimated(tmp_path: Path) -> None:
    """The seconds of 30 updates, without those of a validation and an interruption."""
    times = {5: 100.0, 10: 110.0, 15: 170.0, 20: 180.0, 25: 5000.0, 30: 5010.0}
    lines = [{"kind": "train", "update": update, "time": time} for update, time in times.items()]
    path = tmp_path / METRICS_FILE
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert training_time(tmp_path) == 60.0
    path.write_text(json.dumps(lines[0]) + "\n")
    assert training_time(tmp_path) is None
