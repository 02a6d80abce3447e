"""The FLOP of a workload, and the rate at which this machine computes nothing but its matrix products.

The count comprises the matrix products that are executed; a multiplication and an addition are two FLOP. Products that
filters, bands and fixed heads save are not counted; those for padding and discarded hypotheses are. Attention counts as
its two products without fusion, so that a causal mask saves nothing. Everything else (norms, softmax, dropout, the
optimizer) is not counted: its time shows as a smaller share of the limit.

Shapes: a product (R, C, O) multiplies R rows of C numbers by a weight (O, C).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sparsenmt.engine.packing import Packing
from sparsenmt.engine.products import packed_product, rounds

Shape = tuple[int, int, int]
"""R, C and O of a product."""
SQUARE = {"cpu": 1024, "cuda": 8192}
"""Size of the square product that measures the peak rate of a device."""

_SHARE = 0.99  # of the FLOP whose shapes are timed: the many small shapes of the rest would take long
_SECONDS = 0.1  # for which a product is repeated, at least
_FEWEST = 3  # repeats


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a workload.

    Args:
        flop: of all products.
        products: shape -> number of products of two matrices; batched products (attention) are in ``flop`` only.
    """

    flop: float
    products: Mapping[Shape, int]


def count_arithmetic(work: Callable[[], object]) -> Arithmetic:
    """Run a function once and count its arithmetic. Packed products, which the counter cannot see, must not occur."""
    products: Counter[Shape] = Counter()

    def mm(a: Any, b: Any, *rest: Any, **named: Any) -> int:
        products[int(a[0]), int(a[1]), int(b[1])] += 1
        return 2 * int(a[0]) * int(a[1]) * int(b[1])

    def addmm(bias: Any, a: Any, b: Any, *rest: Any, **named: Any) -> int:
        return mm(a, b)

    def baddbmm(bias: Any, a: Any, b: Any, *rest: Any, **named: Any) -> int:
        return 2 * int(a[0]) * int(a[1]) * int(a[2]) * int(b[2])

    aten = torch.ops.aten
    own = {aten.mm: mm, aten.addmm: addmm, aten.addmm_: addmm, aten.baddbmm_: baddbmm}
    counter = FlopCounterMode(display=False, custom_mapping=own)
    with sdpa_kernel(SDPBackend.MATH), counter:
        work()
    return Arithmetic(float(counter.get_total_flops()), products)


def product_rate(work: Arithmetic, dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP per second of a workload's products, each repeated alone in its fastest form.

    This weighted mean over the shapes is the workload's limit: the rate with nothing between two products.
    """
    by_share = sorted(work.products, key=lambda shape: -_flop(shape) * work.products[shape])
    total = sum(_flop(shape) * times for shape, times in work.products.items())
    flop = seconds = 0.0
    for shape in by_share:
        if flop > _SHARE * total:
            break
        flop += work.products[shape] * _flop(shape)
        seconds += work.products[shape] * _fastest(shape, dtype, device)
    return flop / seconds


def square_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP per second of a large square product."""
    size = SQUARE[device.type]
    return _flop((size, size, size)) / _fastest((size, size, size), dtype, device)


def _flop(shape: Shape) -> float:
    """Return the FLOP of one product."""
    rows, inner, outer = shape
    return 2.0 * rows * inner * outer


@torch.inference_mode()
def _fastest(shape: Shape, dtype: torch.dtype, device: torch.device) -> float:
    """Return the seconds of a product in its fastest form: plain, with a packed weight, or with a rounded weight."""
    rows, inner, outer = shape
    x, weight = torch.randn(rows, inner, device=device), torch.randn(outer, inner, device=device)
    ways: list[Callable[[], object]] = []
    if dtype.is_floating_point:
        given, own = x.to(dtype), weight.to(dtype)
        ways.append(partial(torch.nn.functional.linear, given, own))
        if device.type == "cpu":
            ways.append(partial(packed_product(own, None), given))
    if dtype != torch.float32 and rounds(weight, dtype):
        ways.append(partial(replace(Packing.of(weight), dtype=dtype).product(weight, None), x))
    return min(_seconds(way, device) for way in ways)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call in the fastest of several blocks of calls, long enough for the clock."""
    work()
    synchronize(device)
    best, spent, block, runs = float("inf"), 0.0, 1, 0
    while spent < _SECONDS or runs < _FEWEST:
        began = time.perf_counter()
        for _ in range(block):
            work()
        synchronize(device)
        taken = time.perf_counter() - began
        best, spent, runs = min(best, taken / block), spent + taken, runs + 1
        if taken < _SECONDS / 50:
            block *= 2
    return best


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
