"""A decoder's step in one call of the compiled library, against the formulas in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.kernels import Kernels
from sparsenmt.native.steps import LayerCache, LayerStack, NormWeights, PackedLayer
from tests.examples import examples
from tests.native.libraries import decoding_kernels

SIZE, WIDE, HEADS = 64, 176, 4
SHAPES = [(3 * SIZE, SIZE), (SIZE, SIZE), (SIZE, SIZE), (SIZE, SIZE), (WIDE, SIZE), (SIZE, WIDE)]


@pytest.fixture(scope="module")
def found() -> Kernels:
    return decoding_kernels(torch.float32)


@dataclass(frozen=True)
class Learned:
    """A layer's matrices with their biases, and its norms, as tensors."""

    matrices: list[tuple[Tensor, Tensor]]
    norms: list[NormWeights]

    def packed(self, dtype: torch.dtype) -> PackedLayer:
        pack = decoding_kernels(dtype).layout.pack
        return PackedLayer(tuple(pack(weight, bias, dtype) for weight, bias in self.matrices), tuple(self.norms))


def learned(rng: torch.Generator) -> Learned:
    matrices = [
        (torch.randn(*shape, generator=rng) / shape[1] ** 0.5, torch.randn(shape[0], generator=rng) / 4)
        for shape in SHAPES
    ]
    norms = [NormWeights(*(torch.randn(2, SIZE, generator=rng) * 0.3 + torch.tensor([[1.0], [0.0]]))) for _ in range(3)]
    return Learned(matrices, norms)


@dataclass(frozen=True)
class Problem:
    """A step of two layers: B sentences, R hypotheses each, T positions, K entries of the memory."""

    layers: list[Learned]
    last: NormWeights
    x: Tensor
    caches: list[LayerCache]
    slots: Tensor
    starts: Tensor | None = None


def problem(
    sentences: int, hypotheses: int, length: int, entries: int, *, biased: bool, joined: bool = False
) -> Problem:
    rng = torch.Generator().manual_seed(length + entries)
    rows, size = sentences * hypotheses, SIZE // HEADS
    slots = torch.arange(rows, dtype=torch.int32)[:, None].repeat(1, length + 3)
    for t in range(length - 1):  # hypotheses go on from others of their sentence
        picked = torch.randint(0, hypotheses, (sentences, hypotheses), generator=rng)
        slots[:, t] = (picked + torch.arange(sentences)[:, None] * hypotheses).view(-1)
    caches = []
    for _ in range(2):
        own = (length, rows + 2, HEADS, size)  # two slots of rows that are gone
        bias = torch.randn(sentences, 1, 1, entries, generator=rng)
        bias[:, :, :, 1:] = bias[:, :, :, 1:].masked_fill(bias[:, :, :, 1:] > 1, -math.inf)
        seen = [torch.randn(sentences, HEADS, entries, size, generator=rng) for _ in range(2)]
        written = [torch.randn(*own, generator=rng) for _ in range(2)]
        caches.append(LayerCache(*written, *seen, None, bias if biased else None))
    x = torch.randn(rows, SIZE, generator=rng)
    starts = torch.randint(0, length, (sentences,), generator=rng) if joined else None
    return Problem([learned(rng), learned(rng)], learned(rng).norms[0], x, caches, slots[:, :length], starts)


def copies(caches: list[LayerCache]) -> list[LayerCache]:
    """With keys and values of their own: those are written to."""
    return [replace(cache, keys=cache.keys.clone(), values=cache.values.clone()) for cache in caches]


def run(
    found: Kernels, given: Problem, threads: int, *, pre_norm: bool, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, list[LayerCache]]:
    layers = [each.packed(dtype) for each in given.layers]
    last = given.last if pre_norm else None
    stack = LayerStack(found.layers, layers, heads=HEADS, last=last, pre_norm=pre_norm, epsilon=1e-5)
    caches = copies(given.caches)
    return stack.run(given.x.clone(), caches, given.slots, threads, given.starts), caches


def naive(given: Problem, *, pre_norm: bool) -> Tensor:
    """Loops over rows and heads in float64; writes the last position of the caches."""
    x = given.x.double()

    def norm(x: Tensor, by: NormWeights) -> Tensor:
        return F.layer_norm(x, (SIZE,), by.weight.double(), by.bias.double(), 1e-5)

    for layer, cache in zip(given.layers, given.caches, strict=True):
        for part, by in enumerate(layer.norms):
            read = norm(x, by) if pre_norm else x
            x = x + (_own, _cross, _wide)[part](read, layer, cache, given)
            x = x if pre_norm else norm(x, by)
    return norm(x, given.last) if pre_norm else x


def _linear(x: Tensor, layer: Learned, number: int) -> Tensor:
    weight, bias = layer.matrices[number]
    return F.linear(x, weight.double(), bias.double())


def _weigh(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None) -> Tensor:
    scores = keys @ q / q.shape[0] ** 0.5
    return (scores if bias is None else scores + bias).softmax(0) @ values


def _own(x: Tensor, layer: Learned, cache: LayerCache, given: Problem) -> Tensor:
    q, k, v = _linear(x, layer, 0).view(len(x), 3, HEADS, -1).unbind(1)
    slots, sentences = given.slots, cache.memory_keys.shape[0]
    last = slots.shape[1] - 1
    context = torch.zeros_like(q)
    for n in range(len(x)):
        start = 0 if given.starts is None else int(given.starts[n * sentences // len(x)])
        cache.keys[last, n], cache.values[last, n] = k[n].float(), v[n].float()
        for h in range(HEADS):
            past = [
                [each[t, int(slots[n, t]), h].double() for t in range(start, last)]
                for each in (cache.keys, cache.values)
            ]
            context[n, h] = _weigh(q[n, h], torch.stack([*past[0], k[n, h]]), torch.stack([*past[1], v[n, h]]))
    return _linear(context.view(len(x), -1), layer, 1)


def _cross(x: Tensor, layer: Learned, cache: LayerCache, given: Problem) -> Tensor:
    q = _linear(x, layer, 2).view(len(x), HEADS, -1)
    hypotheses = len(x) // cache.memory_keys.shape[0]
    context = torch.zeros_like(q)
    for n in range(len(x)):
        b = n // hypotheses
        bias = None if cache.memory_bias is None else cache.memory_bias[b].double().view(-1)
        for h in range(HEADS):
            seen = cache.memory_keys[b, h].double(), cache.memory_values[b, h].double()
            context[n, h] = _weigh(q[n, h], *seen, bias)
    return _linear(context.view(len(x), -1), layer, 3)


def _wide(x: Tensor, layer: Learned, cache: LayerCache, given: Problem) -> Tensor:
    return _linear(_linear(x, layer, 4).relu(), layer, 5)


SIZES = [(1, 1, 1, 1), (1, 40, 3, 70), (2, 15, 4, 9), (3, 2, 5, 4), (3, 20, 3, 5), (7, 5, 18, 21), (5, 1, 2, 40)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("pre_norm", [True, False])
@examples("threads", [2, 1, 3])
def test_a_step_is_the_formulas(found: Kernels, sizes: tuple[int, int, int, int], pre_norm: bool, threads: int) -> None:
    """With few rows, where threads share the products, and with many, where each has sentences of its own."""
    for biased, joined in ((False, False), (True, False), (True, True)):
        given = problem(*sizes, biased=biased, joined=joined)
        out, caches = run(found, given, threads, pre_norm=pre_norm)
        expected = naive(given, pre_norm=pre_norm)
        torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=2e-5)
        for ours, theirs in zip(caches, given.caches, strict=True):
            torch.testing.assert_close(ours.keys, theirs.keys, atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(ours.values, theirs.values, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@examples("sizes", [(11, 5, 3, 9), (3, 2, 5, 4), (1, 5, 7, 33)], ids=str)
def test_threads_change_nothing(found: Kernels, sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """To the bit, time after time: what a thread has laid out in scratch no other one overwrites."""
    given = problem(*sizes, biased=True)
    alone, _ = run(found, given, 1, pre_norm=True, dtype=dtype)
    for _ in range(20):
        for threads in (2, 3):
            assert torch.equal(run(found, given, threads, pre_norm=True, dtype=dtype)[0], alone)
    exact = naive(given, pre_norm=True)
    allowed = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.int8: 0.1}[dtype]
    assert float((alone - exact).abs().max()) <= allowed * float(exact.abs().max())


@pytest.mark.parametrize("sizes", [(3, 2, 5, 4), (11, 5, 3, 9)], ids=str)
def test_the_memory_of_sentences_that_have_left_stays_where_it_is(found: Kernels, sizes: tuple[int, ...]) -> None:
    sentences, hypotheses, length, entries = sizes
    given = problem(sentences, hypotheses, length, entries, biased=True)
    expected, _ = run(found, given, 2, pre_norm=True)
    rows = torch.randperm(2 * sentences)[:sentences]

    def apart(x: Tensor) -> Tensor:
        lies = torch.full((2 * sentences, *x.shape[1:]), math.nan)
        lies[rows] = x
        return lies

    caches = [
        replace(r, memory_keys=apart(r.memory_keys), memory_values=apart(r.memory_values), memory_rows=rows)
        for r in given.caches
    ]
    out, _ = run(found, replace(given, caches=caches), 2, pre_norm=True)
    assert torch.equal(out, expected)
