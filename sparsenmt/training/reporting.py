"""What a run tells: a progress bar, ``metrics.jsonl``, and TensorBoard where it is installed."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sparsenmt.files import name_file_in_errors, write_bytes
from sparsenmt.training.state import Progress

METRICS = "metrics.jsonl"


def cut_back(directory: Path, progress: Progress) -> None:
    """Leave out what metrics.jsonl says of later updates: they will be done again. A broken last line goes too."""
    path = directory / METRICS
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
        except (ValueError, KeyError, TypeError):
            continue
        if done:
            kept.append(line + b"\n")
    write_bytes(path, b"".join(kept))


class Reporter:
    """Writes to the terminal (standard error) and to the model directory.

    Args:
        directory: model directory; None reports nothing (ranks other than 0).
        total: updates at the end of the run.
        initial: updates done before.
    """

    def __init__(self, directory: Path | None, *, total: int, initial: int) -> None:
        self._path = None if directory is None else directory / METRICS
        self._file = None if self._path is None else self._path.open("a", encoding="utf-8", newline="\n")
        self._bar = tqdm(
            total=total,
            initial=initial,
            unit="update",
            desc="train",
            disable=directory is None,
            dynamic_ncols=True,
            mininterval=1.0 if sys.stderr.isatty() else 30.0,
        )
        self._board = None if directory is None else _open_board(directory)

    def advance(self, loss: float, tokens_per_second: float) -> None:
        """After every update."""
        self._bar.set_postfix_str(f"loss {loss:.3f}, {tokens_per_second:,.0f} target tokens/s", refresh=False)
        self._bar.update()

    def record(self, kind: str, update: int, **values: Any) -> None:
        """One line of metrics.jsonl; numbers that are not finite become null."""
        if self._file is None or self._path is None:
            return
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        line = json.dumps({"kind": kind, "update": update, "time": round(time.time(), 3), **clean}) + "\n"
        with name_file_in_errors(self._path):
            self._file.write(line)
            self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, update)

    def sync(self) -> None:
        """Bring what was recorded to the disk: a checkpoint must not outlive the report on what led to it."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._file is not None:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def _open_board(directory: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory / "tensorboard"))
