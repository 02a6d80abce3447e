"""The speed of models: of training, by the training's log, and of decoding, measured here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from sparsenmt.decoding.timing import time_decoding
from sparsenmt.decoding.translate import Translation
from sparsenmt.progress import progress_bar
from sparsenmt.store import open_model
from sparsenmt.training.reporting import METRICS
from sparsenmt.workflows.evaluate import TestText, translate_text


def training_speed(directory: Path) -> float | None:
    """Return the median of the training log's target tokens per second; None without a log."""
    path = directory / METRICS
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            entry = json.loads(line)
            if entry["kind"] == "train":
                found.append(float(entry["tokens_per_second"]))
        except (ValueError, KeyError, TypeError):  # for example an incomplete last line of a run in progress
            continue
    return median(found) if found else None


@dataclass(frozen=True)
class DecodingSpeed:
    """The fastest of several turns.

    Args:
        tokens_per_second: target tokens, `</s>` included.
    """

    tokens_per_second: float
    seconds: float


def decoding_speeds(models: Mapping[str, Path], text: TestText, *, lines: int, rounds: int) -> dict[str, DecodingSpeed]:
    """Time models in turns on the first lines of a text; see `decoding.timing.time_decoding`.

    Every model is read anew for each of its turns, so that no more than one is in memory.

    Args:
        models: label -> directory.
        lines: lines of the text, at most.
        rounds: turns of each model; the fastest counts.
    """

    def systems() -> Iterator[tuple[str, Callable[[Sequence[str]], list[Translation]]]]:
        for label, directory in models.items():
            yield label, partial(_translate, open_model(directory), text)
