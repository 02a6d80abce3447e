"""alpha-entmax attention in tiles against the same attention by a matrix of weights, in float64.

On a CUDA device where there is one; otherwise in Triton's interpreter on the CPU, which `make triton` installs. Shapes:
B rows, H heads, Q queries, K keys, E head size.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gpu_attention
from sparsenmt.model.attend import attend_masked, restrict
from sparsenmt.model.sockets import Keys
from sparsenmt.sparsity.entmax import AdaptiveEntmax, Entmax
from sparsenmt.sparsity.simplex import blockwise, transform
from sparsenmt.sparsity.simplex.function import entmax
from sparsenmt.testing.bench import build
from sparsenmt.testing.cases import Case, Plug, Sizes
from tests.gpu.test_conformance import moved

ROOT = Path(__file__).resolve().parents[2]
CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if CUDA else "cpu")
OUTPUTS, GRADIENTS = 1e-5, 1e-4  # fp32, relative to the largest number of a tensor
HALF = {torch.float16: 3e-3, torch.bfloat16: 2e-2}  # of outputs and gradients alike: their weights are rounded
TILES = pytest.mark.skipif(
    blockwise.kernels() is None or not (CUDA or INTERPRETED), reason="no Triton, or neither a GPU nor its interpreter"
)
LEARNED = (1.02, 1.37, 1.9)


@dataclass(frozen=True)
class Problem:
    """Sizes, alpha (several: one learned for each head), and what hides keys."""

    queries: int
    keys: int
    alpha: float | tuple[float, ...] = 1.5
    causal: bool = False
    counts: bool = False
    padded: bool = False  # some keys of the first row, and all of the last
    patterned: bool = False  # a mask for each query and head
    rows: int = 2
    size: int = 16
    spread: float = 1.5  # of queries and keys

    @property
    def heads(self) -> int:
        return len(self.alpha) if isinstance(self.alpha, tuple) else 2

    def tensors(self) -> list[Tensor]:
        """Queries, keys, values, the gradient of the contexts, and learned alphas."""
        rng = torch.Generator().manual_seed(3)
        lengths = (self.queries, self.keys, self.keys, self.queries)
        shapes = [(self.rows, length, self.heads, self.size) for length in lengths]
        made = [torch.randn(shape, generator=rng, dtype=torch.float64).transpose(1, 2) for shape in shapes]
        made = [self.spread * made[0], self.spread * made[1], *made[2:]]
        learned = [torch.tensor(self.alpha, dtype=torch.float64)] if isinstance(self.alpha, tuple) else []
        return [x.to(DEVICE) for x in (*made, *learned)]

    def hidden(self) -> Keys:
        rng = torch.Generator().manual_seed(4)
        valid = torch.ones(self.rows, self.keys, dtype=torch.bool)
        if self.padded:
            valid[0], valid[-1] = torch.rand(self.keys, generator=rng) < 0.7, False
        counts = torch.randint(0, 5, valid.shape, generator=rng).double() if self.counts else None
        queries, keys = torch.arange(self.queries) + max(0, self.keys - self.queries), torch.arange(self.keys)
        shape = (self.rows, self.heads, self.queries, self.keys)
        allowed = (torch.rand(shape, generator=rng) < 0.5) & valid[:, None, None] if self.patterned else None
        given = (valid, queries.expand(self.rows, -1), keys.expand(self.rows, -1), allowed, counts)
        return Keys(*(None if x is None else x.to(DEVICE) for x in given))  # type: ignore[arg-type]


Attend = Callable[[Tensor, Tensor, Tensor, "float | Tensor"], Tensor]


def results(tensors: Sequence[Tensor], alpha: object, attend: Attend, dtype: torch.dtype) -> list[Tensor]:
    """Contexts and the gradients of q, k, v and learned alphas, in float64."""
    q, k, v, given, *learned = tensors
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    wide = dtype if dtype == torch.float64 else torch.float32
    leaves += [x.to(wide).requires_grad_() for x in learned]
    context = attend(*leaves) if learned else attend(*leaves, alpha)
    found = torch.autograd.grad(context, leaves, given.to(dtype))
    return [x.detach().double() for x in (context, *found)]


def by_matrix(problem: Problem, kept: Tensor | None = None) -> Attend:
    """The attention with weights as a matrix, multiplied by factors of dropout."""
    keys = problem.hidden()
    seen = keys.visible()
    if problem.causal:
        seen = seen & (keys.queries[:, None, :, None] >= keys.positions[:, None, None])

    def attend(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
        weights = entmax(q @ k.transpose(2, 3) / problem.size**0.5, alpha, seen, keys.counts)
        return (weights if kept is None else weights * kept) @ v

    return attend


def in_tiles(problem: Problem, dropout: float = 0.0) -> Attend:
    keys = problem.hidden()

    def attend(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
        return blockwise.attend(q, k, v, alpha, keys, dropout, causal=problem.causal)

    return attend


def check(found: Sequence[Tensor], expected: Sequence[Tensor], outputs: float, gradients: float) -> None:
    for number, (mine, exact) in enumerate(zip(found, expected, strict=True)):
        assert bool(mine.isfinite().all())
        error = float((mine - exact).abs().max() / exact.abs().max().clamp_min(0.1))
        assert error <= (gradients if number else outputs), f"tensor {number} of context, q, k, v, alpha: {error:.1e}"


PROBLEMS = [
    Problem(1, 1),
    Problem(5, 7, padded=True),
    Problem(17, 17, LEARNED, causal=True),
    Problem(20, 33, 2.0, counts=True, padded=True),
    Problem(3, 100, LEARNED, counts=True, size=24),
    Problem(40, 40, LEARNED, patterned=True, counts=True, padded=True),
    Problem(70, 150, 1.5, causal=True, padded=True, rows=1),
    Problem(9, 300, 2.0, rows=1, size=64, causal=True),
    Problem(9, 200, (1.05, 1.8), rows=1, size=128, counts=True),
    Problem(9, 260, (1.2, 2.0), padded=True, patterned=True, spread=4.0),
    Problem(9, 260, 1.3, rows=1, spread=0.01),
    Problem(9, 260, (1.01, 1.99), rows=1, spread=6.0),
]


@TILES
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_contexts_and_gradients(problem: Problem) -> None:
    tensors = problem.tensors()
    expected = results(tensors, problem.alpha, by_matrix(problem), torch.float64)
    check(results(tensors, problem.alpha, in_tiles(problem), torch.float32), expected, OUTPUTS, GRADIENTS)


@TILES
@pytest.mark.parametrize("dtype", HALF if CUDA else [torch.float16], ids=str)  # the interpreter has no bf16
@pytest.mark.parametrize("problem", [PROBLEMS[4], PROBLEMS[6]], ids=str)
def test_half_precision(problem: Problem, dtype: torch.dtype) -> None:
    """Compare with the naive form of inputs that are rounded alike."""
    tensors = [x.to(dtype).double() if x.ndim == 4 else x for x in problem.tensors()]
    expected = results(tensors, problem.alpha, by_matrix(problem), torch.float64)
    check(results(tensors, problem.alpha, in_tiles(problem), dtype), expected, HALF[dtype], HALF[dtype])


@TILES
@pytest.mark.parametrize("problem", [Problem(12, 140, LEARNED, rows=1, size=128), Problem(9, 40, causal=True, size=64)])
def test_dropout(problem: Problem) -> None:
    """Values that are unit vectors show the weights, some of them dropped; all gradients are of the same weights."""
    q, k, _, given, *learned = problem.tensors()
    length = min(problem.keys, problem.size)
    v = torch.zeros(problem.rows, problem.heads, problem.keys, problem.size, dtype=torch.float64, device=DEVICE)
    v[:, :, :length, :length] = torch.eye(length, device=DEVICE)
    given[..., length:] = 0
    tensors = [q, k, v, given, *learned]
    plain = results(tensors, problem.alpha, by_matrix(problem), torch.float64)
    torch.manual_seed(5)
    found = results(tensors, problem.alpha, in_tiles(problem, 0.3), torch.float32)
    weights, factors = plain[0][..., :length], torch.zeros(1, device=DEVICE).double()
    some = weights > 1e-12
    factors = torch.where(some, (found[0][..., :length] / weights) * 0.7, 1.0).round()
    assert set(factors.unique().tolist()) == {0.0, 1.0}
    assert abs(float(factors[some].mean()) - 0.7) < 0.1
    torch.manual_seed(5)
    again = results(tensors, problem.alpha, in_tiles(problem, 0.3), torch.float32)
    assert all(bool((a == b).all()) for a, b in zip(found, again, strict=True))
    kept = torch.ones(*q.shape[:3], problem.keys, dtype=torch.float64, device=DEVICE)
    kept[..., :length] = factors
    expected = results(tensors, problem.alpha, by_matrix(problem, kept / 0.7), torch.float64)
    expected[3][:, :, length:], found[3][:, :, length:] = 0, 0  # of values that do not show their weights
    check(found, expected, OUTPUTS, GRADIENTS)


@TILES
def test_tiles_without_weight_are_left_out() -> None:
    """Their values are not read: NaN in them would spread."""
    problem = Problem(16, 200, rows=1)
    q, k, v, given = (x.float() for x in problem.tensors())
    q[:], k[:] = 1, -1
    k[:, :, 64:70] = 1
    v[:, :, :64], v[:, :, 128:] = torch.nan, torch.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    context = in_tiles(problem)(*leaves, 1.5)
    assert bool(context.isfinite().all())
    assert all(bool(x.isfinite().all()) for x in torch.autograd.grad(context, leaves, given))


@TILES
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_score_that_is_not_finite_shows(number: float) -> None:
    q, k, v, _ = (x.float() for x in Problem(3, 40).tensors())
    q[1, 0, 2, 0] = number
    context = in_tiles(Problem(3, 40))(q, k, v, 1.5)
    assert bool(context[1, 0, 2].isnan().all())
    assert bool(context[0].isfinite().all()) and bool(context[1, 1].isfinite().all())


@TILES
def test_shared_alphas_get_one_gradient() -> None:
    problem, tied = Problem(4, 6, LEARNED), AdaptiveEntmax(3, torch.zeros(1)).to(DEVICE)
    q, k, v = problem.tensors()[:3]
    mine = in_tiles(problem)(q.float(), k.float(), v.float(), tied.alphas)
    (found,) = torch.autograd.grad(mine.square().sum(), [tied.alpha])
    exact = attend_masked(q, k, v, restrict(problem.hidden(), None, False), tied.double(), 0.0)
    (expected,) = torch.autograd.grad(exact.square().sum(), [tied.alpha])
    assert float(found) == pytest.approx(float(expected), rel=GRADIENTS)


PLUGS = [
    (("encoder_self.transform", "entmax"), ("decoder_self.transform", "entmax15")),
    (("memory.output", "l0drop"), ("cross.transform", "sparsemax")),
]


@TILES
@pytest.mark.parametrize("plugs", PLUGS, ids=str)
def test_models(plugs: Sequence[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """States and gradients of whole models in fp32, beside those of the plain way in float64."""

    def states() -> dict[str, Tensor]:
        bench.model.zero_grad()
        hidden = bench.outputs(compact=True)
        torch.stack([each.square().sum() for each in hidden.values()]).sum().backward()
        gradients = {name: p.grad.double().clone() for name, p in bench.model.named_parameters() if p.grad is not None}
        return {**{f"exits {exits}": each.detach().double() for exits, each in hidden.items()}, **gradients}

    sizes = Sizes(heads=2, encoder_layers=1, decoder_layers=1)
    bench = build(Case(tuple(Plug.of(*plug) for plug in plugs), "pre", sizes=sizes))
    bench = moved(bench, DEVICE)
    expected, calls = states(), []

    def attend(*given: object, **named: object) -> Tensor:
        calls.append(given)
        return blockwise.attend(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(transform, "computable", lambda q, k, alpha: bool(k.numel()))
    monkeypatch.setattr(transform, "attend", attend)
    bench.model.float()
    found = states()
    assert calls and found.keys() == expected.keys()
    for name, values in expected.items():
        error = float((found[name] - values).abs().max())
        assert error <= GRADIENTS * max(1.0, float(values.abs().max())), f"{name}: {error:.1e}"


@pytest.mark.skipif(blockwise.kernels() is None or not INTERPRETED, reason="not in Triton's interpreter")
def test_a_compiler_takes_the_kernels() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.gpu.compiled_kernels"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().split("\n")) == 9


def test_where_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way over a matrix remains on a CPU, in float64, for a softmax, for large heads, without keys or Triton."""

    class Queries:
        """Stand for tensors of a GPU, as far as the choice looks at them."""

        def __init__(self, dtype: torch.dtype = torch.bfloat16, size: int = 64, length: int = 5) -> None:
            self.dtype, self.shape, self.device = dtype, (1, 2, length, size), torch.device("cuda")

        def numel(self) -> int:
            return self.shape[2] * self.shape[3]

    def taken(q: object = None, k: object = None, alpha: float = 1.5) -> bool:
        return blockwise.computable(q or Queries(), k or Queries(), alpha)  # type: ignore[arg-type]

    q = torch.zeros(1, 1, 1, 4)
    assert Entmax(1.5).attend(q, q, q, Problem(1, 1).hidden(), 0.0, causal=False) is None
    assert not taken() or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(blockwise, "kernels", lambda: object())
    assert taken() and taken(Queries(torch.float32)) and taken(alpha=2.0)
    assert not any(
        [taken(Queries(torch.float64)), taken(Queries(size=256)), taken(k=Queries(length=0)), taken(alpha=1.0)]
    )
    monkeypatch.setattr(blockwise, "kernels", lambda: None)
    assert not taken()


@TILES
def test_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    found = gpu_attention.measure("512", (1, 2, 20, 16), 1, 1, DEVICE)
    assert found.keys() >= {"matrix_entmax15_512", "matrix_learned_512"}
    assert "learned, matrix" in capsys.readouterr().out


def test_bars_of_the_benchmark() -> None:
    ratios = dict.fromkeys([f"{kind}_{length}" for kind in ("entmax15", "learned") for length in (512, 4096)], 1.6)
    ratios |= {"training_entmax15": 1.0, "training_learned": 1.0, "matrix_entmax15_512": 0.1}
    bars = gpu_attention.bars_of(ratios)
    assert {bars.pop(name) for name in ("training_entmax15", "training_learned")} == {0.9}
    assert set(bars.values()) == {1.5} and len(bars) == 4
    cases = gpu_attention.training(smoke=False)
    assert {(case.name, case.work["device"], case.work["our_dtype"]) for case in cases} == {
        ("training_entmax15", "cuda", "bf16"),
        ("training_learned", "cuda", "bf16"),
    }


@pytest.mark.skipif(CUDA, reason="there is a CUDA device")
def test_the_benchmark_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_attention.main([]) == 2
    message = capsys.readouterr().err
    assert "no CUDA device" in message and message.count("\n") == 1
