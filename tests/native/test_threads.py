"""Several threads give to the bit what one gives, in every kernel that has work for more than one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor

from sparsenmt.engine.entmax_kernel import SimplexKernel
from sparsenmt.native import kernels as module
from tests.native.libraries import decoding_kernels, simplex_kernel

Results = Sequence[Tensor | None]


@pytest.fixture(params=[2, 3])
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param
    torch.set_num_threads(1)


def assert_same(compute: Callable[[], Results], cores: int) -> None:
    """By one thread and by ``cores``, time after time; none is left out of the work."""
    torch.set_num_threads(1)
    alone = compute()
    torch.set_num_threads(cores)
    with mock.patch.object(module, "threads", side_effect=module.threads) as asked:
        for _ in range(5):
            for ours, theirs in zip(compute(), alone, strict=True):
                assert ours is theirs is None or (ours is not None and theirs is not None and torch.equal(ours, theirs))
    assert all(module.threads(*call.args) == cores for call in asked.call_args_list)


@pytest.mark.parametrize("queries", [1, 5, 8, 40])
def test_attention(cores: int, queries: int) -> None:
    found = decoding_kernels()
    q, k, v = torch.randn(7, 4, queries, 64), torch.randn(7, 4, 33, 64), torch.randn(7, 4, 33, 64)
    bias = torch.randn(7, 33)
    assert_same(lambda: [found.attend(q, k, v), found.attend(q, k, v, bias=bias)], cores)


def test_attention_to_slots(cores: int) -> None:
    found = decoding_kernels()
    q, k, v = torch.randn(7, 4, 1, 64), torch.randn(33, 9, 4, 64), torch.randn(33, 9, 4, 64)
    slots = torch.randint(0, 9, (7, 33), dtype=torch.int32)
    assert_same(lambda: [found.attend(q, k, v, slots=slots)], cores)


def test_the_vocabulary(cores: int) -> None:
    found = decoding_kernels()
    logits, scores = torch.randn(15, 8003), -torch.rand(5, 3)
    logits[:, 5] = -math.inf

    def compute() -> Results:
        return [found.log_sums(logits), *found.best(logits, 6), *found.candidates(logits.clone(), scores, (5,), 6)]

    assert_same(compute, cores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 29, 300])
def test_products(cores: int, dtype: torch.dtype, rows: int) -> None:
    """One panel more than threads, so that their shares differ."""
    found = decoding_kernels(dtype)
    x, packed = torch.randn(rows, 512), found.layout.pack(torch.randn(4 * 32 + 7, 512), torch.randn(4 * 32 + 7), dtype)
    added, scores = torch.randn(rows, 4 * 32 + 7), -torch.rand(rows, 1)

    def compute() -> Results:
        return [
            found.product(x, packed),
            found.product(x, packed, relu=True, added=added),
            *found.next(x, packed, scores, (3,), 4),
        ]

    assert_same(compute, cores)


@pytest.mark.parametrize("keys", [13, 37, 130])
def test_alpha_entmax(cores: int, keys: int) -> None:
    """In tiles, in tiles only forward, row by row."""
    kernel: SimplexKernel = simplex_kernel()
    scores, given = torch.randn(9, 4, 70, keys), torch.randn(9, 4, 70, keys)
    visible, counts = torch.rand(9, 1, 70, keys) < 0.8, torch.randint(1, 4, (9, keys)).float()
    alphas = torch.tensor([1.0, 1.3, 1.5, 2.0])

    def compute() -> Results:
        mass = kernel.forward(scores, visible, counts, alphas)
        return [mass, *kernel.backward(mass, given, counts, alphas, of_alpha=True)]

    assert_same(compute, cores)
    torch.set_num_threads(cores)
    assert kernel._threads(scores.numel()) == cores
