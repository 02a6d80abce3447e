"""The time of window attention relative to full attention, and its growth with the length.

    python benchmarks/window_scaling.py [CASE ...] [--repeats N]

Forward and backward of attention from projected queries, keys and values to contexts; projections excluded. One text, 8
heads of 64, fp32, 2 threads, a centred window of 64. Ours is the function that a model's attention calls, with
everything that it computes in every call (bands, masks from positions); full attention is
`scaled_dot_product_attention` without a mask. All sides take turns in one process; the fastest of the repeats counts.

window64_2048  seconds of full attention over those of the window, at 2048 positions
growth         seconds of the window at 8192 positions over 8 times those at 1024 (1: linear)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common import Timing, command_line, parse, take_turns, verdict
from sparsenmt.model.attend import attend_banded
from sparsenmt.model.sockets import Keys
from sparsenmt.sparsity.softmax import Softmax
from sparsenmt.sparsity.window import WindowPattern

SIZES: dict[str, Any] = {"rows": 1, "heads": 8, "head_size": 64, "window": 64, "threads": 2}
# full: lengths at which full attention is timed; bar: at least (window64_2048), at most (growth).
CASES: dict[str, dict[str, Any]] = {
    "window64_2048": SIZES | {"lengths": [2048], "full": [2048], "bar": 6.0},
    "growth": SIZES | {"lengths": [1024, 2048, 4096, 8192], "full": [], "bar": 1.2},
}


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def heads(work: dict[str, Any], length: int, seed: int) -> Tensor:
    """Return (B, H, L, E) in the memory layout of projections: the heads of a position are contiguous."""
    shape = (work["rows"], length, work["heads"], work["head_size"])
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).transpose(1, 2)


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def windowed(work: dict[str, Any], length: int) -> Attend:
    """Return the function of window attention at a length, as a model's attention calls it."""
    pattern, transform = WindowPattern(work["window"], causal=False), Softmax()
    at = torch.arange(length).expand(work["rows"], -1)
    keys = Keys(torch.ones(at.shape, dtype=torch.bool), at, at)
    return lambda q, k, v: attend_banded(q, k, v, keys, transform, 0.0, pattern=pattern, causal=False)


class Work:
    """The work of one side at one length."""

    def __init__(self, attend: Attend, work: dict[str, Any], length: int) -> None:
        self.attend = attend
        self.inputs = [heads(work, length, seed).requires_grad_() for seed in range(3)]
        self.gradient = heads(work, length, 3)

    def repeat(self) -> float:
        """Forward and backward once; returns seconds."""
        start = time.perf_counter()
        torch.autograd.grad(self.attend(*self.inputs), self.inputs, self.gradient)
        return time.perf_counter() - start


def measure(work: dict[str, Any], repeats: int) -> dict[tuple[str, int], Timing]:
    """Time every side at every length, in turns."""
    sides = {("full", length): Work(full, work, length) for length in work["full"]}
    sides |= {("window", length): Work(windowed(work, length), work, length) for length in work["lengths"]}
    return take_turns({name: side.repeat for name, side in sides.items()}, repeats)


def ratio_of(best: dict[tuple[str, int], float], work: dict[str, Any]) -> float:
    """Return the time of full over window attention, or the growth of the window if full attention is not timed."""
    lengths = work["lengths"]
    if work["full"]:
        return best["full", work["full"][-1]] / best["window", lengths[-1]]
    longer: float = lengths[-1] / lengths[0]
    return best["window", lengths[-1]] / best["window", lengths[0]] / longer


def main(arguments: Sequence[str] | None = None) -> int:
    given, changes = parse(command_line(__doc__, repeats=15), list(CASES), arguments)
    ratios: dict[str, float] = {}
    bars: dict[str, float] = {}
    for name in given.cases or CASES:
        work = CASES[name] | changes
        torch.set_num_threads(work["threads"])
        timings = measure(work, given.repeats)
        best = {key: timing.best for key, timing in timings.items()}
        print(f"\n{name}: window of {work['window']}, forward + backward; fastest of {given.repeats}, taking turns")
        for (side, length), timing in timings.items():
            print(f"  {side:<8} {length:>6} positions {1e3 * timing.best:>9.2f} ms  spread {timing.spread:6.1%}")
        ratios[name] = ratio_of(best, work)
        if not changes:
            bars[name] = work["bar"]
        print(f"  ratio {ratios[name]:.3f}" + (f", bar {work['bar']}" if name in bars else ""), flush=True)
    result = verdict("window_scaling", ratios, bars, most=["growth"])
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
