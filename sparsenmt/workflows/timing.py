"""The speed of models: of training, by the training's log, and of decoding, measured here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sparsenmt.decoding.timing import time_decoding
from sparsenmt.decoding.translate import Translation
from sparsenmt.progress import progress_bar
from sparsenmt.store import METRICS_FILE, open_model
from sparsenmt.workflows.evaluate import TestText, translations


def training_speed(directory: Path) -> float | None:
    """Return the target tokens per second of training: the median of the log's lines; None without a log."""
    path = directory / METRICS_FILE
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            entry = json.loads(line)
            if entry["kind"] == "train":
                found.append(float(entry["tokens_per_second"]))
        except (ValueError, KeyError, TypeError):  # for example the incomplete last line of a run in progress
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
    """Time models in turns on the first lines of a text.

    A model is read anew for each of its turns, so that no more than one is in memory.

    Args:
        models: label -> directory.
        lines: lines of the text, at most.
        rounds: turns of each model; the fastest counts.
    """

    def translate(directory: Path) -> Callable[[Sequence[str]], list[Translation]]:
        bundle = open_model(directory)
        return lambda sources: translations(bundle, text, sources)[1]

    def systems() -> Iterator[tuple[str, Callable[[Sequence[str]], list[Translation]]]]:
        for label, directory in models.items():
            yield label, translate(directory)

    with progress_bar("decoding speed", rounds * len(models), unit="model") as advance:
        times = time_decoding(systems, text.read()[0][:lines], rounds=rounds, advance=advance)
    return {label: DecodingSpeed(_tokens(each.result) / each.seconds, each.seconds) for label, each in times.items()}


def _tokens(found: Sequence[Translation]) -> int:
    return sum(len(each.hypotheses[0].tokens) + each.hypotheses[0].ended for each in found)
