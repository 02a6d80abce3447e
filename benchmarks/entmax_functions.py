"""The speed of alpha-entmax relative to the public package `entmax`: forward and backward of the functions alone.

    python benchmarks/entmax_functions.py [CASE ...] [--repeats N]

Random scores (batch, heads, queries, keys), fp32. The package, which the tests compare with, too, runs on the same
PyTorch in the same process; all sides take turns, and the fastest of the repeats counts. Ratios are the package's
seconds over ours.

entmax15_*           alpha = 1.5: the package sorts; ours as in a model, compiled if there is a compiler
adaptive_*           an alpha per head, with its gradient: the package bisects 50 times (default); ours in PyTorch only
adaptive_compiled_*  the same, ours compiled; left out without a compiler

Without bars: 1.5-entmax in PyTorch alone, and softmax, over ours.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from common import PAUSE_SECONDS, command_line, parse, take_turns, verdict
from sparsenmt.engine.entmax_kernel import simplex_kernel
from sparsenmt.sparsity.simplex.function import entmax

# shape: batch, heads, queries, keys; pause: true if there must be one between the sides.
CASES: dict[str, dict[str, Any]] = {
    "15": {"shape": [256, 8, 15, 15], "threads": 2, "entmax15_bar": 3.0},
    "64": {"shape": [64, 8, 64, 64], "threads": 2, "entmax15_bar": 6.0},
    "512": {"shape": [8, 8, 512, 512], "threads": 2, "entmax15_bar": 8.0},
}
ADAPTIVE_BAR, COMPILED_BAR = 3.0, 5.0

Function = Callable[[Tensor, Tensor], Tensor]  # scores (B, H, Q, K), alphas (H) -> weights


@dataclass
class Side:
    """A function, and a flag for a learned alpha."""

    name: str
    function: Function
    learned: bool = False


def sides() -> list[Side]:
    """Return the functions that take turns. The package and ours are called as documented."""
    try:
        import entmax as package
    except ImportError:
        raise SystemExit("the package entmax is not installed: pip install -e '.[dev]' brings it") from None

    def theirs_learned(scores: Tensor, alphas: Tensor) -> Tensor:
        result: Tensor = package.entmax_bisect(scores, alphas.view(1, -1, 1, 1), dim=-1)
        return result

    found = [
        Side("softmax", lambda scores, alphas: torch.softmax(scores, -1)),
        Side("package entmax15", lambda scores, alphas: package.entmax15(scores, dim=-1)),
        Side("entmax15", lambda scores, alphas: entmax(scores, 1.5)),
        Side("package adaptive", theirs_learned, learned=True),
        Side("adaptive", entmax, learned=True),
    ]
    if (kernel := simplex_kernel()) is not None:
        found.append(Side("entmax15 compiled", lambda scores, alphas: entmax(scores, 1.5, solver=kernel)))
        found.append(Side("adaptive compiled", partial(entmax, solver=kernel), learned=True))
    return found


def once(side: Side, scores: Tensor, given: Tensor, logits: Tensor) -> float:
    """Return the seconds of one forward and backward pass."""
    scores.grad = logits.grad = None
    alphas = 1.01 + 0.99 * torch.sigmoid(logits)
    start = time.perf_counter()
    side.function(scores, alphas if side.learned else alphas.detach()).backward(given)
    return time.perf_counter() - start


def measure(name: str, work: dict[str, Any], repeats: int) -> dict[str, float]:
    """Time a case, print it, and return its ratios."""
    torch.set_num_threads(work["threads"])
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(work["shape"], generator=rng).requires_grad_()
    given = torch.randn(work["shape"], generator=rng)
    logits = torch.randn(work["shape"][1], generator=rng).requires_grad_()
    everyone = {side.name: partial(once, side, scores, given, logits) for side in sides()}
    timings = take_turns(everyone, repeats, pause=min(PAUSE_SECONDS, 0.1))
    best = {name: timing.best for name, timing in timings.items()}
    shape = " x ".join(map(str, work["shape"]))
    print(f"\n{name}: {shape}, {work['threads']} threads; forward + backward, fastest of {repeats}, taking turns")
    for side, timing in timings.items():
        print(f"  {side:<20}{timing.best * 1e3:>10.2f} ms  (spread {timing.spread:6.1%})")
    ours = best.get("entmax15 compiled", best["entmax15"])
    ratios = {
        f"entmax15_{name}": best["package entmax15"] / ours,
        f"adaptive_{name}": best["package adaptive"] / best["adaptive"],
    }
    if "adaptive compiled" in best:
        ratios[f"adaptive_compiled_{name}"] = best["package adaptive"] / best["adaptive compiled"]
        ratios[f"entmax15_eager_{name}"] = best["package entmax15"] / best["entmax15"]
    ratios[f"softmax_over_entmax15_{name}"] = best["softmax"] / ours
    ratios[f"softmax_over_adaptive_{name}"] = best["softmax"] / best.get("adaptive compiled", best["adaptive"])
    for key, ratio in ratios.items():
        print(f"  {key:<30}{ratio:>8.2f}")
    sys.stdout.flush()
    return ratios


def bars_of(name: str, work: dict[str, Any], ratios: dict[str, float]) -> dict[str, float]:
    bars = {f"entmax15_{name}": work["entmax15_bar"], f"adaptive_{name}": ADAPTIVE_BAR}
    if f"adaptive_compiled_{name}" in ratios:
        bars[f"adaptive_compiled_{name}"] = COMPILED_BAR
    return bars


def main(arguments: Sequence[str] | None = None) -> int:
    given, changes = parse(command_line(__doc__, repeats=7), list(CASES), arguments)
    ratios: dict[str, float] = {}
    bars: dict[str, float] = {}
    for name in given.cases or CASES:
        work = CASES[name] | changes
        found = measure(name, work, given.repeats)
        ratios |= found
        bars |= {} if changes else bars_of(name, work, found)
    result = verdict("entmax_functions", ratios, bars)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
