"""The time of attention to a window and to global positions, gathered and masked.

    python benchmarks/global_attention.py [CASE ...] [--repeats N]

Forward and backward of attention from projected queries, keys and values to contexts; projections excluded. One text, 8
heads of 64, fp32, 1 thread, in the encoder. Both sides are functions that a model's attention calls, with everything
that it computes in every call: gathered, blocks of queries meet the band of keys within reach and the first keys, and
the queries at the first positions meet all keys; masked, all scores are computed, and a mask hides most of them. The
sides take turns in one process; the fastest of the repeats counts.

longformer_N  seconds masked over gathered, at N positions: a window of 128 and 16 global positions, by the pattern of
              `tests/outside/longformer.py`
entmax_N      the same with 1.5-entmax in place of softmax
global_N      the same with softmax for the method `global`: 16 global positions alone
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from common import command_line, parse, take_turns, verdict
from sparsenmt.model.attend import attend_banded, attend_fused, attend_masked, restrict
from sparsenmt.model.bands import band_layout
from sparsenmt.model.sockets import Keys, Pattern, Transform
from sparsenmt.sparsity import registry
from window_scaling import Attend, Work

PLUGIN = Path(__file__).resolve().parent.parent / "tests" / "outside" / "longformer.py"
SIZES: dict[str, Any] = {"rows": 1, "heads": 8, "head_size": 64, "threads": 1, "transform": "softmax"}
LONGFORMER = SIZES | {"pattern": "longformer", "options": {"window": 128, "first": 16}}
GLOBAL = SIZES | {"pattern": "global", "options": {"k": 16}}
# bar: at least.
CASES: dict[str, dict[str, Any]] = {
    "longformer_1024": LONGFORMER | {"length": 1024, "bar": 1.3},
    "longformer_4096": LONGFORMER | {"length": 4096, "bar": 5.0},
    "entmax_1024": LONGFORMER | {"transform": "entmax15", "length": 1024, "bar": 1.5},
    "entmax_4096": LONGFORMER | {"transform": "entmax15", "length": 4096, "bar": 6.0},
    "global_1024": GLOBAL | {"length": 1024, "bar": 2.0},
    "global_4096": GLOBAL | {"length": 4096, "bar": 8.0},
}


def load_plugin() -> None:
    """Register the pattern of the Longformer, as naming its module in SPARSENMT_PLUGINS does."""
    spec = importlib.util.spec_from_file_location("longformer", PLUGIN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["longformer"] = module
    spec.loader.exec_module(module)


def made(socket: registry.Socket, name: str, options: dict[str, Any], **context: Any) -> Any:
    """Build a method of the encoder's self-attention."""
    method = registry.get(socket, name)
    return method.build(method.options.model_validate(options), site="encoder_self", **context)


def sides(work: dict[str, Any]) -> dict[str, Attend]:
    """Return both functions from queries, keys and values to contexts."""
    length = work["length"]
    pattern: Pattern = made("pattern", work["pattern"], work["options"])
    transform: Transform = made("transform", work["transform"], {}, heads=work["heads"])
    layout = band_layout(pattern, False)
    assert layout is not None and length >= layout.shortest, "a model would not gather"
    at = torch.arange(length).expand(work["rows"], -1)
    keys = Keys(torch.ones(at.shape, dtype=torch.bool), at, at)

    def gathered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend_banded(q, k, v, keys, transform, 0.0, pattern=pattern, causal=False)

    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = restrict(keys, pattern, False)
        if transform.fusable:
            return attend_fused(q, k, v, seen, transform, 0.0, causal=False)
        return attend_masked(q, k, v, seen, transform, 0.0)

    return {"gathered": gathered, "masked": masked}


def main(arguments: Sequence[str] | None = None) -> int:
    given, changes = parse(command_line(__doc__, repeats=9), list(CASES), arguments)
    ratios: dict[str, float] = {}
    bars: dict[str, float] = {}
    load_plugin()
    for name in given.cases or CASES:
        work = CASES[name] | changes
        torch.set_num_threads(work["threads"])
        length = work["length"]
        timings = take_turns(
            {side: Work(attend, work, length).repeat for side, attend in sides(work).items()}, given.repeats
        )
        print(f"\n{name}: {work['pattern']} {work['options']}, {work['transform']}, {length:,} positions")
        for side, timing in timings.items():
            print(f"  {side:<8} {1e3 * timing.best:>9.2f} ms  spread {timing.spread:6.1%}")
        ratios[name] = timings["masked"].best / timings["gathered"].best
        if not changes:
            bars[name] = work["bar"]
        print(f"  masked / gathered {ratios[name]:.2f}" + (f", bar {work['bar']}" if name in bars else ""), flush=True)
    result = verdict("global_attention", ratios, bars)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
