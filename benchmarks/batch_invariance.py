"""Differences between translations in batches of 1 to 256 sentences and translations of each sentence alone.

    python benchmarks/batch_invariance.py MODEL_DIR --source TEXT --reference TEXT [--sentences N]

Batches have exactly this number of sentences, in one random order, so that short and long sentences are mixed: the most
padding, the most different shapes of matrix products. For every size, in float64 and in fp32, it prints the number of
translations that differ from those of the sentence alone, the difference of their scores (a near tie can round either
way), and the largest relative difference of the references' log-probabilities. Design rule 9 sets the bars.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from common import verdict
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_parallel
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.inputs import SourceLine, make_source, read_sources
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.decoding.translate import encoded_batch
from sparsenmt.recipe.schema import Decoding

SIZES = [2**power for power in range(9)]
RELATIVE = {"float64": 1e-9, "fp32": 1e-4}  # of log-probabilities
NEAR_TIE = 1e-3  # score difference of translations that differ, in fp32; float64 allows no difference
SHARE = 0.005  # of sentences that may differ in fp32


def translate(bundle: Bundle, lines: Sequence[SourceLine], options: Decoding, size: int) -> list[Hypothesis]:
    """Return the best hypothesis of every line, searched as in `decode`, in batches of ``size`` in order."""

    def batches() -> Iterator[EncodedBatch]:
        for start in range(0, len(lines), size):
            batch = lines[start : start + size]
            with torch.inference_mode():
                memory = bundle.engine.encode(make_source(bundle, batch), compact=True).memory
            yield encoded_batch(bundle, memory, list(range(start, start + len(batch))), batch, options)

    found: dict[int, list[Hypothesis]] = {}
    for results in strategy_of(options).search(bundle.engine, batches(), lambda numbers: nullcontext()):
        found |= results
    return [found[number][0] for number in range(len(lines))]


def force(bundle: Bundle, sources: Sequence[str], targets: Sequence[str], size: int) -> list[float]:
    """Return the references' log-probabilities, in batches of ``size``."""
    values: list[float] = []
    for start in range(0, len(sources), size):
        given = input_lines(sources[start : start + size])
        scores = score_pairs(bundle, given, targets[start : start + size], batch_tokens=10**9)
        values += [pair.log_probability for pair in scores]
    return values


def compare(name: str, bundle: Bundle, sources: list[str], targets: list[str]) -> dict[str, float]:
    """Print a line for every size; returns the worst values of all."""
    lines = [line for line in read_sources(bundle, input_lines(sources)) if not line.empty]
    options = bundle.recipe.decoding.model_copy(update={"method": "beam"})
    alone: list[Hypothesis] = []
    forced: list[float] = []
    worst = {"differ": 0.0, "gap": 0.0, "log_probability": 0.0}
    print(f"{name:8} {'size':>5} {'differ':>7} {'largest gap':>12} {'log-probability':>16} {'seconds':>8}")
    for size in SIZES:
        began = time.perf_counter()
        found, values = translate(bundle, lines, options, size), force(bundle, sources, targets, size)
        if size == 1:
            alone, forced = found, values
        pairs = zip(alone, found, strict=True)
        gaps = [abs(a.score - b.score) for a, b in pairs if a.tokens != b.tokens]
        relative = max(abs(a - b) / abs(a) for a, b in zip(forced, values, strict=True))
        seconds = time.perf_counter() - began
        print(
            f"{name:8} {size:5} {len(gaps):7} {max(gaps, default=0):12.2e} {relative:16.2e} {seconds:8.1f}", flush=True
        )
        for key, value in (("differ", len(gaps)), ("gap", max(gaps, default=0.0)), ("log_probability", relative)):
            worst[key] = max(worst[key], float(value))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--sentences", type=int, help="number of sentences to use, from the first")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = list(read_parallel([given.source, given.reference]))[: given.sentences]
    random.Random(1).shuffle(rows)
    sources, targets = [row[0] for row in rows], [row[1] for row in rows]
    plain = open_model(given.model, device=torch.device("cpu"), dtype=None)
    exact = compare("float64", replace(plain, model=plain.model.double()), sources, targets)
    single = compare("fp32", open_model(given.model, device=torch.device("cpu")), sources, targets)
    ratios = {
        "float64_differ": exact["differ"],
        "float64_log_probability": exact["log_probability"],
        "fp32_differ_share": single["differ"] / len(rows),
        "fp32_gap": single["gap"],
        "fp32_log_probability": single["log_probability"],
    }
    bars = {
        "float64_differ": 0.0,
        "float64_log_probability": RELATIVE["float64"],
        "fp32_differ_share": SHARE,
        "fp32_gap": NEAR_TIE,
        "fp32_log_probability": RELATIVE["fp32"],
    }
    name = f"batch_invariance {given.model.name}, {len(rows)} sentences"
    print(json.dumps({**verdict(name, ratios, bars, most=bars), "ratios": ratios}))  # far below the fourth decimal


if __name__ == "__main__":
    main()
