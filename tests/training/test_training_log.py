"""metrics.jsonl: what is written, and what of it stands after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsenmt.store import METRICS_FILE
from sparsenmt.training.state import Progress, ValidationResult
from sparsenmt.training.training_log import TrainingLog, truncate_log


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
    (tmp_path / METRICS_FILE).symlink_to("/dev/full")
    log = TrainingLog(tmp_path, total=1, initial=0)
    for action in (lambda: log.record("train", 1, loss=1.0), log.close):
        with pytest.raises(OSError, match="No space left") as caught:
            action()
        assert caught.value.filename == str(tmp_path / METRICS_FILE)
