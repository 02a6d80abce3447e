"""The protocol between a benchmark and a worker process: one JSON line for each request and reply, on stdin and stdout.

The peers' environments use it, too: it needs the standard library and NumPy only.

1. The worker gets its work as JSON in its first argument, builds everything, warms up, and writes
   ``{"ready": true, "what": ..., "units": ...}``.
2. For every line on stdin it does the work once and replies ``{"seconds": ...}``.
3. It ends at the end of stdin.

Token ids are the same on both sides: PAD, UNK, BOS and EOS are 0, 1, 2 and 3.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAD, UNK, BOS, EOS = 0, 1, 2, 3
Ids = NDArray[np.int64]


def work_from_arguments() -> dict[str, Any]:
    """Return the work from the first command-line argument."""
    work: dict[str, Any] = json.loads(sys.argv[1])
    return work


def serve(*, what: str, units: int, repeat: Callable[[], None], warm_up: Callable[[], None] | None = None) -> None:
    """Answer requests until stdin ends.

    ``what`` names the program with its version; ``units`` is the amount of work in one call of ``repeat`` (target
    tokens), by which the benchmark checks that both sides do the same. Output of libraries goes to stderr.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    (warm_up or repeat)()

    def say(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    say({"ready": True, "what": what, "units": units})
    while sys.stdin.buffer.readline():
        start = time.perf_counter()
        repeat()
        say({"seconds": time.perf_counter() - start})


def decoding_sources(work: dict[str, Any]) -> list[list[int]]:
    """Return random sentences without ``</s>``: ``sentences`` of ``source_length`` tokens out of ``vocabulary``."""
    shape = (work["sentences"], work["source_length"])
    sources: list[list[int]] = np.random.default_rng(0).integers(EOS + 1, work["vocabulary"], shape).tolist()
    return sources


def training_batches(work: dict[str, Any]) -> list[tuple[Ids, Ids, Ids]]:
    """Return the first ``steps`` batches of a file: source (B, S), target input (B, T), target output (B, T).

    Sources and target outputs end with ``</s>``, target inputs start with ``<s>``; all are padded on the right.
    """
    batches = []
    with np.load(work["batches"], allow_pickle=False) as file:
        for i in range(work["steps"]):
            source, output = file[f"source_{i}"], file[f"target_{i}"]
            start = np.full((len(output), 1), BOS, dtype=output.dtype)
            shifted = np.where(output == EOS, PAD, output)[:, :-1]
            batches.append((source, np.concatenate([start, shifted], axis=1), output))
    return batches


def language_batches(work: dict[str, Any]) -> list[tuple[Ids, Ids]]:
    """Return ``steps`` random segments of a text, inputs and targets: (streams, segment_length) each."""
    shape = (work["streams"], work["steps"] * work["segment_length"] + 1)
    text = np.random.default_rng(0).integers(EOS + 1, work["vocabulary"], shape)
    length = work["segment_length"]
    firsts = range(0, shape[1] - 1, length)
    return [(text[:, first : first + length], text[:, first + 1 : first + length + 1]) for first in firsts]
