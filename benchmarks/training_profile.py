"""The time of a training step by phase and by kind of operator.

    python benchmarks/training_profile.py [fp32] [bf16] [--trace FILE]

The step is that of `train_vs_transformers.py` (forward, label-smoothed cross-entropy, backward, Adam), on the same
batches of Multi30k. Phases are timed by the clock, without the profiler; operators by torch.profiler in a second pass.
As the profiler makes that pass longer, only its shares are printed. An operator's time excludes the operators that it
calls. To compare two versions of the program, run it in both. Passes without compiled kernels take turns with those
with them; `DTYPE_kernels` is the time without over the time with them. Ends with one JSON line: the other ratios are
the shares of the phases in percent; there are no bars.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import command_line, parse, verdict
from multi30k import write_batches
from train_vs_transformers import SMALL

WORK: dict[str, Any] = SMALL | {"steps": 6}
# The first kind with a word in the operator's name counts; without one the kind is `other`.
KINDS: dict[str, tuple[str, ...]] = {
    "attention": ("scaled_dot_product", "flash_attention"),
    "products": ("mm", "linear", "dot", "_onednn", "mkldnn"),
    "softmax and loss": ("softmax", "logsumexp", "gather", "scatter"),
    "normalisation": ("layer_norm",),
    "dropout": ("dropout", "bernoulli", "random_", "Dropout", "rand"),
    "optimizer": ("adam", "Adam", "_foreach", "clip"),
    "embeddings": ("embedding", "index"),
    "copies and casts": ("copy", "_to_copy", "::to", "clone", "contiguous", "cat", "fill", "zero", "empty"),
    "element-wise": ("add", "mul", "sub", "div", "sum", "threshold", "relu", "gelu", "silu", "where", "masked", "pow"),
}
PHASES = ("gradients", "collect", "optimizer", "publish")


def kind_of(name: str) -> str:
    """Return the kind of an operator."""
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "other")


def make_step(work: dict[str, Any]) -> tuple[list[Any], dict[str, Callable[[Any], object]]]:
    """Return the batches, and the phases of a step on one of them, in order."""
    from protocol import training_batches
    from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients
    from workers.train import as_batch, set_up

    model, weights, optimizer = set_up(work)
    objective = Objective(work["label_smoothing"], "tokens", {})

    def update(batch: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()

    steps: dict[str, Callable[[Any], object]] = {
        "gradients": lambda batch: accumulate_gradients(model, batch, objective, UpdateTotals.of([batch])),
        "collect": lambda batch: weights.collect(),
        "optimizer": update,
        "publish": lambda batch: weights.publish(),
    }
    return [as_batch(*batch) for batch in training_batches(work)], steps


def phases(batches: list[Any], steps: dict[str, Callable[[Any], object]]) -> Counter[str]:
    """Return the seconds by phase of one pass over the batches."""
    taken: Counter[str] = Counter()
    for batch in batches:
        for name, step in steps.items():
            began = time.perf_counter()
            step(batch)
            taken[name] += time.perf_counter() - began  # type: ignore[assignment]
    return taken


@contextmanager
def without_kernels() -> Iterator[None]:
    """Turn compiled kernels off."""
    from sparsenmt.native.library import SWITCH

    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def operators(batches: list[Any], steps: dict[str, Callable[[Any], object]], trace: Path | None) -> Counter[str]:
    """Return the exclusive time by operator, in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        phases(batches, steps)
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    return Counter({event.key: int(event.self_cpu_time_total) for event in profiler.key_averages()})


def show(dtype: str, work: dict[str, Any], repeats: int, trace: Path | None) -> dict[str, float]:
    """Print both tables of one precision; returns the shares of the phases in percent."""
    batches, steps = make_step(work | {"our_dtype": dtype})
    phases(batches, steps)  # warm-up
    passes, plain = [], []
    for _ in range(repeats):
        passes.append(phases(batches, steps))
        with without_kernels():
            plain.append(phases(batches, steps))
    best = min(passes, key=lambda taken: sum(taken.values()))
    gain = min(sum(taken.values()) for taken in plain) / sum(best.values())
    total = sum(best.values())
    tokens = sum(batch.target_tokens for batch in batches)
    spread = max(sum(taken.values()) for taken in passes) / total - 1
    print(f"\n{dtype}: {tokens / total:.0f} target tokens/s, fastest of {repeats}, spread {spread:.1%}")
    for name in PHASES:
        print(f"  {name:<18} {best[name] / total:6.1%}  {1000 * best[name] / len(batches):8.1f} ms a step")
    print(f"  without compiled kernels {gain:.3f} times as long")
    found = operators(batches, steps, trace)
    kinds: Counter[str] = Counter()
    for name, own in found.items():
        kinds[kind_of(name)] += own
    whole = sum(found.values())
    print("  operators:")
    for kind, own in kinds.most_common():
        names = ", ".join(name for name, _ in found.most_common() if kind_of(name) == kind)
        print(f"    {kind:<18} {own / whole:6.1%}  {names[:90]}")
    return {f"{dtype}_{name}": 100 * best[name] / total for name in PHASES} | {f"{dtype}_kernels": gain}


def main() -> int:
    parser = command_line(__doc__, 3)
    parser.add_argument("--trace", type=Path, help="write the profiler's trace, for chrome://tracing")
    arguments, changes = parse(parser, ["fp32", "bf16"])
    work = write_batches(WORK | changes)
    ratios: dict[str, float] = {}
    for dtype in arguments.cases or ["fp32", "bf16"]:
        ratios |= show(dtype, work, arguments.repeats, arguments.trace)
    print(json.dumps(verdict("training_profile", ratios, {})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
