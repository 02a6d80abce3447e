"""The cost of training all depths at once, relative to the plain model: base size, 6+6 layers, 8k vocabulary.

    python benchmarks/tied_multi.py [CASE ...] [--repeats N]

A step is forward, label-smoothed cross-entropy, backward and Adam, on random sentences of one length, without padding,
which makes the share of the projection as large as possible. fp32, 2 threads; plain and tied take turns, each in a
process of its own; the fastest of the repeats counts.

time_exact    seconds of a step that trains all 36 pairs of depths over those of a plain step; the arithmetic (encoder
              once, decoder 6 times, projection 36 times) is 6.6, published with a vocabulary of 32k are 9.5
memory_exact  the same for the peak memory of the process (Linux), the program itself included
time_sampled  seconds of a step that trains one encoder depth with all 6 decoder depths; a repeat takes each in turn

Ratios must stay below their bars. Ends with one JSON line; the exit code is 0 if every ratio does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attention_training import TRAINING, write_batches
from common import Side, Worker, command_line, interleave, parse, verdict

WORK: dict[str, Any] = TRAINING | {"batch_tokens": 1024, "length": 16}
PLAIN = Side("workers/train.py", work={"named": " plain"})


@dataclass(frozen=True)
class Case:
    """The model that is timed in comparison with the plain one, and the bars of its ratios."""

    depth: dict[str, Any]
    steps: int
    bars: dict[str, float]


CASES = {
    "exact": Case({"name": "tied_multi"}, 1, {"time_exact": 7.0, "memory_exact": 1.4}),
    "sampled": Case({"name": "tied_multi", "sample": {"encoder": 1}}, WORK["encoder_layers"], {"time_sampled": 1.6}),
}


def measure(name: str, case: Case, changes: dict[str, Any], repeats: int) -> dict[str, float]:
    """Time a case, print both sides, and return its ratios."""
    work = write_batches(WORK | {"steps": case.steps} | changes)
    tied = Side("workers/train.py", work={"depth": case.depth, "named": f" {name}"})
    with Worker(tied, work) as ours, Worker(PLAIN, work) as plain:
        timings = interleave([ours, plain], repeats)
        peaks = [ours.peak(), plain.peak()]
    steps = work["steps"]
    print(
        f"\n{name}: {work['batch_tokens']} target tokens a step, {steps} a repeat, fastest of {repeats}, taking turns"
    )
    for timing, peak in zip(timings, peaks, strict=True):
        every = " ".join(f"{s / steps:.3f}" for s in timing.seconds)
        spread = f"spread {timing.spread:5.1%}"
        print(f"  {timing.what:<32} {timing.best / steps:>7.3f} s a step  {spread}  {peak:>6} MB  seconds: {every}")
    ratios = {f"time_{name}": timings[0].best / timings[1].best, f"memory_{name}": peaks[0] / peaks[1]}
    for ratio, value in ratios.items():
        bar = case.bars.get(ratio)
        print(f"  {ratio} {value:.3f}" + (f", at most {bar}" if bar is not None and not changes else ""), flush=True)
    return {ratio: value for ratio, value in ratios.items() if ratio in case.bars}


def main(arguments: Sequence[str] | None = None) -> int:
    given, changes = parse(command_line(__doc__, repeats=5), list(CASES), arguments)
    ratios: dict[str, float] = {}
    bars: dict[str, float] = {}
    for name in given.cases or CASES:
        ratios |= measure(name, CASES[name], changes, given.repeats)
        bars |= {} if changes else CASES[name].bars
    result = verdict("tied_multi", ratios, bars, most=bars)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
