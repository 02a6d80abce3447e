"""The compiled kernels of training, with their gradients: fp32 and bf16, on the CPU.

They are checked against PyTorch in float64 by the first training, and used where the table of choices has them faster.
Shapes: B sentences, H heads, Q queries, K keys, E head size, N rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.native.address import address, check
from sparsenmt.native.agreement import distance, largest_error, numbers
from sparsenmt.native.choice import Choices
from sparsenmt.native.library import Library, LoadedLibrary, wanted
from sparsenmt.native.sources import TRAINING, set_of

_LANES = 16  # floats of the widest vector: head sizes are multiples of it
_MOST_SIZE = 256  # of a head
_LEVELS = 1 << 16  # values of the 16 random bits that decide about a number in dropout
KERNEL_DTYPES = (torch.float32, torch.bfloat16)
_NUMBERS = "numbers in fp32 or bf16"
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
_CHECKED_ATTENTION = (
    *((6, 21, False, None), (21, 21, True, None)),
    *((50, 50, False, (3, 2)), (90, 90, False, (40, 30)), (70, 70, False, (9, 0))),
)
"""Queries, keys, causal, reach."""
_POINTER, _NUMBER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_FUNCTIONS = {
    "sparsenmt_drop": [_POINTER, _POINTER, _NUMBER, _SIZE, _SIZE, _NUMBER, ctypes.c_float, _POINTER, _NUMBER],
}
_ALLOCATING = {
    "sparsenmt_loss": [_POINTER, _NUMBER, _SIZE, _SIZE, _POINTER, ctypes.c_float, _POINTER, _POINTER, _NUMBER],
    "sparsenmt_attention": [_POINTER, _NUMBER, _POINTER, _NUMBER],
    "sparsenmt_attention_backward": [_POINTER, _NUMBER, *[_POINTER] * 5, _NUMBER],
}


@dataclass(frozen=True)
class HiddenKeys:
    """The keys that attention does not see.

    Args:
        bias: (B, K) in fp32, added to the scores; minus infinity hides a key. None: no key is hidden for all queries.
        causal: no query sees later keys.
        reach: the keys before and after its own position that a query sees; None: all.
    """

    bias: Tensor | None = None
    causal: bool = False
    reach: tuple[int, int] | None = None


class _Problem(ctypes.Structure):
    """The C struct of an attention: its sizes, and the addresses of its inputs and of their strides in numbers."""

    _fields_ = (
        *((name, _SIZE) for name in ("batch", "heads", "queries", "keys", "size")),
        *((name, _POINTER) for name in ("q", "k", "v", "strides", "bias")),
        *((name, _SIZE) for name in ("causal", "left", "right")),
    )


class GradientKernels(LoadedLibrary):
    """The functions of the library of training.

    Attributes:
        choice: the measured ratios for its instruction set.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _FUNCTIONS, _ALLOCATING)
        self.choice = Choices(set_of(path))

    def loss(self, logits: Tensor, target: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Overwrite logits (N, V) by their softmax less ``share`` at the target (N).

        Returns:
            the logits of the targets and the logarithms of the normalizers, (N) in fp32.
        """
        rows, size = logits.shape
        check(logits.dtype in KERNEL_DTYPES, _NUMBERS)
        check(not len(target) or 0 <= int(target.min()) <= int(target.max()) < size, "targets in the vocabulary")
        own, logs = logits.new_empty(2, rows, dtype=torch.float32).unbind()
        self.library.sparsenmt_loss(
            *(address(logits, logits.dtype, rows, size), logits.dtype == torch.bfloat16, rows, size),
            *(address(target, torch.long, rows), share, address(own, torch.float32, rows)),
            *(address(logs, torch.float32, rows), self._threads(logits.numel())),
        )
        return own, logs

    def attend(self, q: Tensor, k: Tensor, v: Tensor, hidden: HiddenKeys) -> Tensor:
        """q (B, H, Q, E), k and v (B, H, K, E) -> (B, H, Q, E), a view of contiguous (B, Q, H, E).

        Queries that see no key get zeros.
        """
        problem, work = _problem(q, k, v, hidden)
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3])
        self.library.sparsenmt_attention(
            *(ctypes.addressof(problem), q.dtype == torch.bfloat16, out.data_ptr(), self._threads(work))
        )
        return out.transpose(1, 2)

    def attend_back(
        self, q: Tensor, k: Tensor, v: Tensor, hidden: HiddenKeys, given: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v, strided as that of `attend`, from ``given`` (B, H, Q, E), that of its result."""
        problem, work = _problem(q, k, v, hidden)
        given = given if given.stride(-1) == 1 else given.contiguous()
        found = [x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in (q, k, v)]
        to = (address(each, q.dtype, *each.shape) for each in found)
        self.library.sparsenmt_attention_backward(
            *(ctypes.addressof(problem), q.dtype == torch.bfloat16, address(given, q.dtype, *q.shape, free=3)),
            *((_SIZE * 3)(*given.stride()[:3]), *to, self._threads(work)),
        )
        of_q, of_k, of_v = (each.transpose(1, 2) for each in found)
        return of_q, of_k, of_v

    def drop(self, x: Tensor, key: int, dropped: int, added: Tensor | None) -> Tensor:
        """Compute `sparsenmt.model.dropout.plain_drop`: the same numbers become zero."""
        check(x.dtype in KERNEL_DTYPES, _NUMBERS)
        x, added = x.contiguous(), None if added is None else added.contiguous()
        result = torch.empty_like(x)
        self.library.sparsenmt_drop(
            address(x, x.dtype, *x.shape),
            None if added is None else address(added, x.dtype, *x.shape),
            x.dtype == torch.bfloat16,
            *(key, x.numel(), dropped - _LEVELS // 2, _LEVELS / (_LEVELS - dropped)),
            address(result, x.dtype, *x.shape),
            self._threads(x.numel()),
        )
        return result


def _problem(q: Tensor, k: Tensor, v: Tensor, hidden: HiddenKeys) -> tuple[_Problem, int]:
    """The C struct of an attention, valid as long as q, k and v, and the number of multiplications of one product."""
    (batch, heads, queries, size), keys = q.shape, k.shape[2]
    check(q.dtype in KERNEL_DTYPES, _NUMBERS)
    check(size % _LANES == 0 and keys > 0 and queries > 0, f"heads of a multiple of {_LANES}, and keys")
    same = queries == keys
    check(same or not (hidden.causal or hidden.reach), "as many queries as keys where positions hide keys")
    pointers = [address(x, q.dtype, batch, heads, x.shape[2], size, free=3) for x in (q, k, v)]
    check(v.shape[2] == keys, "as many values as keys")
    left, right = hidden.reach or (max(queries, keys),) * 2
    check(min(left, right) >= 0, "a reach that is not negative")
    strides = (_SIZE * 9)(*(step for x in (q, k, v) for step in x.stride()[:3]))
    added = None if hidden.bias is None else address(hidden.bias, torch.float32, batch, keys)
    pointers += [ctypes.addressof(strides)]
    problem = _Problem(batch, heads, queries, keys, size, *pointers, added, hidden.causal, left, right)
    problem.held = strides, hidden.bias
    seen = keys if hidden.reach is None else min(keys, left + right + 1)
    return problem, batch * heads * queries * seen * size


class _Attention(torch.autograd.Function):
    """Attention by the kernel, whose bias gets no gradient; its weights are computed anew for those of q, k and v."""

    @staticmethod
    def forward(ctx: Any, found: GradientKernels, q: Tensor, k: Tensor, v: Tensor, hidden: HiddenKeys) -> Tensor:
        ctx.save_for_backward(q, k, v, *([] if hidden.bias is None else [hidden.bias]))
        ctx.hidden, ctx.kernels = replace(hidden, bias=None), found
        return found.attend(q, k, v, hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, *bias = ctx.saved_tensors
        hidden = replace(ctx.hidden, bias=bias[0] if bias else None)
        return None, *ctx.kernels.attend_back(q, k, v, hidden, grads[0]), None


def attends(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True if the kernels compute attention of such tensors, in training."""
    return (
        q.dtype in KERNEL_DTYPES
        and q.dtype == k.dtype == v.dtype
        and q.device.type == "cpu"
        and torch.is_grad_enabled()
        and 0 < q.shape[3] <= _MOST_SIZE
        and q.shape[3] % _LANES == 0
        and k.shape[0] == q.shape[0]
        and min(q.shape[2], k.shape[2]) > 0
        and any(x.requires_grad for x in (q, k, v))
    )


def attend(found: GradientKernels, q: Tensor, k: Tensor, v: Tensor, hidden: HiddenKeys) -> Tensor:
    """Compute `GradientKernels.attend` as a function of autograd."""
    rows = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    result: Tensor = _Attention.apply(found, *rows, hidden)  # type: ignore[no-untyped-call]
    return result


def gradient_kernels() -> GradientKernels | None:
    """The library; None if there is none for this processor, or it is turned off."""
    return _found() if wanted() else None


@functools.cache
def _found() -> GradientKernels | None:
    return Library(TRAINING, GradientKernels, error).find()


def plain_attention(q: Tensor, k: Tensor, v: Tensor, hidden: HiddenKeys) -> Tensor:
    """Compute `GradientKernels.attend` by PyTorch's operators, in the dtype of q."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if hidden.bias is not None:
        scores = scores + hidden.bias[:, None, None].to(scores.dtype)
    later = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    if hidden.causal:
        scores = scores.masked_fill(later > 0, -torch.inf)
    if hidden.reach is not None:
        scores = scores.masked_fill((later < -hidden.reach[0]) | (later > hidden.reach[1]), -torch.inf)
    lost = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(lost, 0.0), -1).masked_fill(lost, 0.0) @ v


@torch.enable_grad()
def error(found: GradientKernels) -> float:
    """The largest deviation from PyTorch in float64 on small problems, over the tolerance (`largest_error`)."""

    def errors(threads: int) -> Iterator[float]:
        for dtype, tolerance in _TOLERANCE.items():
            yield _loss_error(found, dtype) / tolerance
            yield _dropout_error(found, dtype) / tolerance
            for each in _CHECKED_ATTENTION:
                yield _attention_error(found, dtype, *each) / tolerance

    return largest_error(found, errors)


def _attention_error(
    found: GradientKernels,
    dtype: torch.dtype,
    queries: int,
    keys: int,
    causal: bool,
    reach: tuple[int, int] | None,
) -> float:
    """The deviation of attention and its gradients, relative where numbers are above 1."""
    batch, heads, size = 2, 3, 32
    inputs = [numbers(batch, n, heads, size, speed=s) for n, s in ((queries, 0.7), (keys, 0.31), (keys, 1.3))]
    q, k, v = (x.to(dtype).transpose(1, 2) for x in inputs)
    bias, given = numbers(batch, keys, speed=0.9), numbers(batch, heads, queries, size, speed=0.23).to(dtype)
    bias[0, 3:7], hidden = -torch.inf, HiddenKeys(bias, causal, reach)
    if reach is not None:
        bias[1, 10:30] = -torch.inf  # also queries that see none
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    expected = plain_attention(wide[0], wide[1], wide[2], hidden)
    slopes = torch.autograd.grad(expected, wide, given.double())
    results = found.attend(q, k, v, hidden), *found.attend_back(q, k, v, hidden, given)
    return max(distance(a, b, relative=True) for a, b in zip(results, (expected.detach(), *slopes), strict=True))


def _loss_error(found: GradientKernels, dtype: torch.dtype) -> float:
    worst = 0.0
    for size in (64, 77):
        logits, target = (9 * numbers(5, size)).to(dtype), torch.arange(5) * 16 % size
        wide = logits.double()
        expected = torch.softmax(wide, -1).scatter_add(1, target[:, None], torch.full((5, 1), -0.9, dtype=wide.dtype))
        own, logs = found.loss(logits, target, 0.9)
        pairs = (
            (logits, expected),
            (own, wide.gather(1, target[:, None]).squeeze(1)),
            (logs, wide.logsumexp(1)),
        )
        worst = max(worst, *(distance(a, b, relative=True) for a, b in pairs))
    return worst


def dropout_problem(count: int, dtype: torch.dtype) -> tuple[Tensor, int, Tensor]:
    """x, key and added for `GradientKernels.drop`: ``count`` numbers each."""
    return numbers(count).to(dtype), 0x123456789ABCDEF, numbers(count, speed=1.3).to(dtype)


def _dropout_error(found: GradientKernels, dtype: torch.dtype) -> float:
    worst, dropped = 0.0, 20000
    for count in (3, 9001):
        x, key, added = dropout_problem(count, dtype)
        draws = _draws(key, torch.arange(count))
        kept = torch.where(draws < dropped - _LEVELS // 2, 0.0, x.double() * (_LEVELS / (_LEVELS - dropped)))
        for more, expected in ((None, kept), (added, kept + added)):
            worst = max(worst, distance(found.drop(x, key, dropped, more), expected, relative=True))
    return worst


def _draws(key: int, places: Tensor) -> Tensor:
    """The 16 random bits of places, signed, as `sparsenmt.model.dropout.Draws.bits`; all in int64."""
    x = (places // 2 * 0x9E3779B1 ^ key) % (1 << 32)
    x = ((x ^ x >> 16) * 0x7FEB352D + (key >> 32)) % (1 << 32)
    x = (x ^ x >> 15) * 0x846CA68B % (1 << 32)
    half = torch.where(places % 2 == 1, x >> 16, x ^ x >> 16)
    return (half + _LEVELS // 2) % _LEVELS - _LEVELS // 2
