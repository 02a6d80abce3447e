"""The speed of alpha-entmax attention in tiles on a GPU: beside public packages, and in training beside softmax.

    python benchmarks/gpu_attention.py [CASE ...] [--repeats N] [--smoke]

Forward and backward of one attention, bf16, heads of size 64, random queries, keys and values; all sides take turns,
and the fastest of the repeats counts. Ratios are the other side's seconds over ours.

entmax15_*   alpha = 1.5, beside the package `entmax`, which sorts a matrix of scores
learned_*    an alpha per head, with its gradient: the package bisects
training_*   target tokens per second over those with softmax, as in attention_training.py, at length 64, bf16

Without bars: `matrix_*`, this project's attention by a matrix of weights; `adasplash_*` and `adasplash_causal_*`, the
package `adasplash`, where it is installed: alpha = 1.5.

``--smoke`` runs everything once in small sizes, without bars. Ends with one JSON line; the exit code is 0 if every
ratio reaches its bar, and 2 without a CUDA device or Triton.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import attention_training
from common import Case, command_line, compare, parse, take_turns, verdict
from sparsenmt.model.attend import attend_masked, restrict
from sparsenmt.model.sockets import Keys
from sparsenmt.process.devices import pick_device
from sparsenmt.sparsity.simplex import blockwise
from sparsenmt.sparsity.simplex.transform import EntmaxTransform
from sparsenmt.workflows.evaluation.benchmark.flops import synchronize

# rows, heads, positions, size of a head
SHAPES: dict[str, tuple[int, int, int, int]] = {"512": (16, 8, 512, 64), "4096": (2, 8, 4096, 64)}
SMOKE = (1, 2, 128, 16)
BAR, TRAINING_BAR = 1.5, 0.9
CALLS = 5  # between two looks at the clock
TRAINING = {"training_entmax15": "entmax15_64", "training_learned": "adaptive_64"}
"""Ratio -> the case of attention_training.py."""

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v, alphas (H) -> contexts


class _ByMatrix(EntmaxTransform):
    """The weights that the plain way makes."""

    def __init__(self, alphas: float | Tensor) -> None:
        super().__init__()
        self._alphas = alphas

    @property
    def alphas(self) -> float | Tensor:
        return self._alphas

    def attend(self, *given: Any, **named: Any) -> None:
        return None


def package(name: str) -> ModuleType | None:
    """Import a package; None: it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed: left out", file=sys.stderr)
        return None


def by_package(solve: Callable[[Tensor, Tensor], Tensor]) -> Attention:
    """Attention by a function from scores and alphas (1, H, 1, 1) to weights."""

    def attend(q: Tensor, k: Tensor, v: Tensor, alphas: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        return solve(scores, alphas.view(1, -1, 1, 1)).to(v.dtype) @ v

    return attend


def attentions(keys: Keys) -> dict[str, tuple[str, Attention]]:
    """Side -> the ratio that it belongs to, and its attention; ours have no ratio."""

    def ours(q: Tensor, k: Tensor, v: Tensor, alphas: Tensor, *, learned: bool, causal: bool = False) -> Tensor:
        return blockwise.attend(q, k, v, alphas if learned else 1.5, keys, 0.0, causal=causal)

    def matrix(q: Tensor, k: Tensor, v: Tensor, alphas: Tensor, *, learned: bool) -> Tensor:
        return attend_masked(q, k, v, restrict(keys, None, False), _ByMatrix(alphas if learned else 1.5), 0.0)

    found: dict[str, tuple[str, Attention]] = {
        "entmax15": ("", partial(ours, learned=False)),
        "learned": ("", partial(ours, learned=True)),
        "causal": ("", partial(ours, learned=False, causal=True)),
        "entmax15, matrix": ("matrix_entmax15", partial(matrix, learned=False)),
        "learned, matrix": ("matrix_learned", partial(matrix, learned=True)),
    }
    if (peer := package("entmax")) is not None:
        found["entmax15, entmax"] = ("entmax15", by_package(lambda x, alphas: peer.entmax15(x, dim=-1)))
        found["learned, entmax"] = ("learned", by_package(lambda x, alphas: peer.entmax_bisect(x, alphas, dim=-1)))
    if (tiles := package("adasplash")) is not None:
        names = {False: ("entmax15, adasplash", "adasplash"), True: ("causal, adasplash", "adasplash_causal")}
        for causal, (side, ratio) in names.items():

            def theirs(q: Tensor, k: Tensor, v: Tensor, alphas: Tensor, causal: bool = causal) -> Tensor:
                made: Tensor = tiles.adasplash(q, k, v, alpha=1.5, is_causal=causal)
                return made

            found[side] = (ratio, theirs)
    return found


def once(attention: Attention, tensors: Sequence[Tensor], learned: bool, calls: int) -> float:
    """Return the seconds of a forward and backward pass."""
    q, k, v, given, alphas = tensors
    alphas = alphas.detach().requires_grad_(learned)
    leaves = [q, k, v, alphas] if learned else [q, k, v]
    synchronize(given.device)
    start = time.perf_counter()
    for _ in range(calls):
        torch.autograd.grad(attention(q, k, v, alphas), leaves, given)
    synchronize(given.device)
    return (time.perf_counter() - start) / calls


def measure(
    name: str, shape: tuple[int, int, int, int], repeats: int, calls: int, device: torch.device
) -> dict[str, float]:
    """Time all sides at one length, print them, and return the ratios."""
    rows, heads, length, _ = shape
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # Triton's interpreter has no bf16
    rng = torch.Generator(device).manual_seed(0)
    made = [torch.randn(shape, generator=rng, device=device, dtype=dtype) for _ in range(4)]
    alphas = torch.linspace(1.2, 1.8, heads, device=device)
    tensors = [*(x.requires_grad_() for x in made[:3]), made[3], alphas]
    positions = torch.arange(length, device=device).expand(rows, -1)
    keys = Keys(torch.ones(rows, length, dtype=torch.bool, device=device), positions, positions)
    sides = attentions(keys)
    work = {side: partial(once, each, tensors, "learned" in side, calls) for side, (_, each) in sides.items()}
    timings = take_turns(work, repeats)
    print(f"\n{name}: {' x '.join(map(str, shape))}, {dtype}; forward + backward, fastest of {repeats}, taking turns")
    for side, timing in timings.items():
        print(f"  {side:<24}{timing.best * 1e3:>10.3f} ms  (spread {timing.spread:6.1%})", flush=True)
    ours = {side: timings[side.partition(",")[0]].best for side in sides}
    return {f"{ratio}_{name}": timings[side].best / ours[side] for side, (ratio, _) in sides.items() if ratio}


def training(smoke: bool) -> list[Case]:
    """Return the cases of training on the GPU."""
    work = {"device": "cuda", "our_dtype": "bf16", "batch_tokens": 256 if smoke else 16384}
    known = {case.name: case for case in attention_training.cases()}
    return [replace(known[each], name=name, work=known[each].work | work, bar=None) for name, each in TRAINING.items()]


def bars_of(ratios: dict[str, float]) -> dict[str, float]:
    bars = {f"{kind}_{name}": BAR for kind in ("entmax15", "learned") for name in SHAPES}
    bars |= dict.fromkeys(TRAINING, TRAINING_BAR)
    return {name: bar for name, bar in bars.items() if name in ratios}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__, repeats=7)
    parser.add_argument("--smoke", action="store_true", help="everything once, in small sizes, without bars")
    given, _ = parse(parser, [*SHAPES, *TRAINING], arguments)
    if not torch.cuda.is_available() or blockwise.kernels() is None:
        missing = "PyTorch finds no CUDA device" if not torch.cuda.is_available() else "Triton is not installed"
        print(f"error: gpu_attention.py times attention on a GPU: {missing}", file=sys.stderr)
        return 2
    device = pick_device("cuda")
    repeats, calls = (1, 1) if given.smoke else (given.repeats, CALLS)
    ratios: dict[str, float] = {}
    for name, shape in SHAPES.items():
        if not given.cases or name in given.cases:
            ratios |= measure(name, SMOKE if given.smoke else shape, repeats, calls, device)
    for case in training(given.smoke):
        if not given.cases or case.name in given.cases:
            ratios[case.name] = compare(case, repeats)
    result = verdict("gpu_attention", ratios, {} if given.smoke else bars_of(ratios))
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
