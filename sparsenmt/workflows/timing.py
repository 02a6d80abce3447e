"""How fast models train and translate: what their training has logged, and decoding that is timed here."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsenmt.workflows.evaluate import TestText

_WARM_UP = 4  # lines that are translated before the clock starts


def training_speed(directory: Path) -> float | None:
    """Target tokens a second in training: the median of the log's lines; None without a log."""
    from sparsenmt.store import METRICS_FILE

    path = directory / METRICS_FILE
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            entry = json.loads(line)
            if entry["kind"] == "train":
                found.append(float(entry["tokens_per_second"]))
        except (ValueError, KeyError, TypeError):  # the last line of a run that goes on, say
            continue
    return median(found) if found else None


@dataclass(frozen=True)
class DecodingSpeed:
    """The fastest of several rounds."""

    tokens_per_second: float
    """Target pieces, `</s>` included."""
    seconds: float


def decoding_speeds(models: Mapping[str, Path], text: TestText, *, lines: int, rounds: int) -> dict[str, DecodingSpeed]:
    """Time models in one run: they take turns, so that all see the machine at its best and at its worst.

    Args:
        models: label -> directory.
        lines: of the text, at most.
        rounds: turns that each model gets; the fastest counts.
    """
    from sparsenmt.progress import progress_bar

    sources = text.read()[0][:lines]
    found: dict[str, DecodingSpeed] = {}
    with progress_bar("decoding speed", rounds * len(models)) as advance:
        for _ in range(rounds):
            for label, directory in models.items():
                speed = _turn(directory, text, sources)
                if label not in found or speed.seconds < found[label].seconds:
                    found[label] = speed
                advance(1)
    return found


def _turn(directory: Path, text: TestText, lines: Sequence[str]) -> DecodingSpeed:
    """Translate once. The model is read anew, so that no more than one is in memory; reading is not timed."""
    from sparsenmt.store import open_model
    from sparsenmt.workflows.evaluate import translations

    bundle = open_model(directory)
    translations(bundle, text, lines[:_WARM_UP])
    began = time.perf_counter()
    _, found = translations(bundle, text, lines)
    seconds = time.perf_counter() - began
    pieces = sum(len(each.hypotheses[0].tokens) + each.hypotheses[0].ended for each in found)
    return DecodingSpeed(pieces / seconds, seconds)
