"""The log of a training run: its progress, ``metrics.jsonl``, and trackers."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from sparsenmt.assemble.model_directory import METRICS_FILE
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.process.progress import ProgressBar, notify
from sparsenmt.storage.files import name_file_in_errors, no_follow, write_bytes
from sparsenmt.training.state import Progress
from sparsenmt.training.trackers import Trackers


def truncate_log(directory: Path, progress: Progress) -> None:
    """Remove the entries of later updates from metrics.jsonl, which will be repeated, and a broken last line."""
    path = directory / METRICS_FILE
    if not path.exists():
        return
    validated = {each.update for each in progress.validated}
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
            if entry["kind"] == "skipped":
                done = entry["skipped"] <= progress.skipped
            elif entry["kind"] == "validation":
                done = entry["update"] in validated
            else:
                done = entry["update"] <= progress.update
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if done:
            kept.append(line + b"\n")
    write_bytes(path, b"".join(kept))


def head_values(model: TranslationModel) -> dict[str, Any]:
    """Return the part of a line of the log that the model's transforms give; empty if they give nothing.

    ``heads``: name -> site -> for each step a list of its learned heads' values, to four decimals.
    """
    rounded = {
        name: {
            site: [[round(each, 4) if math.isfinite(each) else None for each in heads] for heads in steps]
            for site, steps in sites.items()
        }
        for name, sites in model.logged().items()
    }
    return {"heads": rounded} if rounded else {}


def logged_values(directory: Path, kind: str, *keys: str) -> list[list[Any]]:
    """Return the values under ``keys`` of each line of a kind, in the log's order; lines without one are left out."""
    path, found = directory / METRICS_FILE, []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            entry = json.loads(line)
            if entry["kind"] == kind:
                found.append([entry[key] for key in keys])
        except (ValueError, KeyError, TypeError, RecursionError):  # as in the last line of a run in progress
            continue
    return found


def training_speed(directory: Path) -> tuple[float | None, float | None]:
    """Return the target tokens per second of training: the median of the log's lines, and the median deviation from it.

    Returns:
        the deviation as a share of the median, None for fewer than two lines; both None without a log.
    """
    found = [speed for (speed,) in logged_values(directory, "train", "tokens_per_second") if _is_number(speed)]
    if len(found) < 2 or not median(found):
        return (median(found) if found else None), None
    middle = median(found)
    return middle, median(abs(speed - middle) for speed in found) / middle


def training_time(directory: Path) -> float | None:
    """Return the seconds of all updates of a run, without its validations and checkpoints; None without a log.

    Logs of older versions hold no sum: theirs is the median time between two lines of updates, times the updates.
    """
    sums = [
        seconds
        for kind in ("train", "validation")
        for (seconds,) in logged_values(directory, kind, "training_seconds")
        if _is_number(seconds)
    ]
    if sums:
        return float(max(sums))
    lines = [line for line in logged_values(directory, "train", "update", "time") if all(map(_is_number, line))]
    pairs = [(later[0] - line[0], later[1] - line[1]) for line, later in pairwise(lines) if later[0] > line[0]]
    if not pairs:
        return None
    every = median(updates for updates, _ in pairs)
    return float(median(seconds / updates for updates, seconds in pairs) * (lines[-1][0] - lines[0][0] + every))


def training_updates(directory: Path) -> int | None:
    """Return the number of the last update in the log of a run; None without a log."""
    found = [update for kind in ("train", "validation") for (update,) in logged_values(directory, kind, "update")]
    return max((int(update) for update in found if _is_number(update)), default=None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


class TrainingLog:
    """Writes to the terminal (standard error) and to the model directory.

    Args:
        directory: model directory; None writes nothing (processes other than the main one).
        total: updates at the end of the run.
        initial: updates that are done already.
        trackers: names of the programs that get the numbers, too; None: as for `Trackers`.
    """

    def __init__(
        self, directory: Path | None, *, total: int, initial: int, trackers: Sequence[str] | None = None
    ) -> None:
        self._path = None if directory is None else directory / METRICS_FILE
        self._file = None
        if self._path is not None:
            self._file = open(self._path, "a", encoding="utf-8", newline="\n", opener=no_follow)  # noqa: SIM115
        self._bar = ProgressBar("train", total, unit="update", done=initial, paced=False, shown=directory is not None)
        self._trackers = None if directory is None else Trackers(directory, trackers, initial)
        if self._trackers is not None:
            drawn = f"; curves: tensorboard --logdir {shlex.quote(str(directory))}"
            notify(f"{self._path}: the log{drawn * ('tensorboard' in self._trackers.names)}")

    def advance(self, loss: float, tokens_per_second: float, closed: Sequence[str] = ()) -> None:
        """Count an update on the progress bar.

        Args:
            closed: shares of closed gates, as text.
        """
        state = ", ".join([f"loss {loss:.3f}", *closed, f"{tokens_per_second:,.0f} target tokens/s"])
        self._bar.advance(1, state)

    def record(self, kind: str, update: int, **values: Any) -> None:
        """Append a line to metrics.jsonl, and one of the progress; numbers that are not finite become null."""
        if self._file is None or self._path is None:
            return
        if kind == "train":
            self._bar.write_line()
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        line = json.dumps({"kind": kind, "update": update, "time": round(time.time(), 3), **clean}) + "\n"
        with name_file_in_errors(self._path):
            self._file.write(line)
            self._file.flush()
        if self._trackers is not None:
            self._trackers.log(kind, update, values)

    def sync(self) -> None:
        """Flush the log to disk: it must not lag behind a checkpoint."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def notify(self, text: str) -> None:
        """Print a line above the progress bar."""
        if self._file is not None:
            notify(text)

    def close(self) -> None:
        self._bar.close()
        if self._file is not None and self._path is not None:
            with name_file_in_errors(self._path):  # closing writes again what `record` could not write
                self._file.close()
        if self._trackers is not None:
            self._trackers.close()
