"""The compiled kernels of decoding as functions on tensors: fp32, on the CPU.

Shapes: B rows or sentences, J hypotheses a sentence, H heads, Q queries, K keys, E head size, N rows, V vocabulary,
D inner dimension.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native import steps, trials
from sparsenmt.native.build import Library, wanted
from sparsenmt.native.choice import Choice, Trial
from sparsenmt.native.packing import PackedMatrix, fields, pack

_FOLDER = Path(__file__).parent
HEAD_SIZES = frozenset({16, 32, 48, 64, 96, 128})  # heads that attention is compiled for
_TOLERANCE = 1e-5
_PRODUCT_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.int8: 4e-2}
_THREAD_WORK = 1 << 14  # multiplications from which on one more thread pays
_MOST_FORBIDDEN = 8  # tokens; kForbidden of the library
MOST_IN_ORDER = 64  # the largest width of `Kernels.best`
_BLOCK = 28  # rows whose logits a thread computes at a time: two tiles


_POINTER, _NUMBER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_ARGUMENTS = {
    "sparsenmt_attend": [*[_POINTER] * 7, _SIZE, *[_POINTER] * 3, _NUMBER],
    "sparsenmt_attend_many": [*[_POINTER] * 9, _NUMBER],
    "sparsenmt_log_sums": [_POINTER, *[_SIZE] * 3, _POINTER, _NUMBER],
    "sparsenmt_best": [_POINTER, *[_SIZE] * 4, _POINTER, _POINTER, _NUMBER],
    "sparsenmt_candidates": [_POINTER, _POINTER, _SIZE, _NUMBER],
    "sparsenmt_next": [*[_POINTER] * 3, _SIZE, _POINTER, _POINTER, _NUMBER],
    "sparsenmt_product": [_POINTER, _POINTER, _SIZE, _POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER],
}


class _Continuations(ctypes.Structure):
    """The C struct."""

    _fields_ = (
        *fields(_SIZE, "sentences", "hypotheses", "size", "width", "count"),
        *fields(_POINTER, "never", "scores", "values", "indices", "totals", "parents", "tokens"),
    )


class _ContinuationBuffers:
    """Preallocated results of a search for the best continuations of B sentences.

    Args:
        scores: (B, J), contiguous.
        size: V.
        never: forbidden tokens.
    """

    def __init__(self, scores: Tensor, size: int, never: Sequence[int], width: int) -> None:
        assert len(set(never)) == len(never) <= _MOST_FORBIDDEN
        sentences, opened = scores.shape
        totals, found = scores.new_empty(sentences, width), scores.new_empty(2, sentences, width, dtype=torch.long)
        rows = sentences * opened * width
        values, indices = scores.new_empty(rows), scores.new_empty(rows, dtype=torch.long)
        parents, tokens = found.unbind()
        self.found = totals, parents, tokens
        numbers = (_SIZE * len(never))(*never)
        self._held = numbers, scores, values, indices  # keeps alive what the pointers point to
        pointers = (x.data_ptr() for x in (scores, values, indices, *self.found))
        shape = sentences, opened, size, width, len(never)
        self._structure = _Continuations(*shape, ctypes.addressof(numbers), *pointers)
        self.pointer = ctypes.addressof(self._structure)


class Kernels:
    """The library's functions."""

    def __init__(self, path: Path) -> None:
        library = self._library = ctypes.CDLL(str(path))
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self.step = steps.StepFunctions(library)
        self.has_products = bool(library.sparsenmt_has_products())
        dtypes = (torch.float32, torch.bfloat16, torch.int8)
        self.products = frozenset(dtypes) if self.has_products else frozenset()
        self.choice = Choice(path.stem)

    def ratios(self, kind: str, *sizes: Any) -> list[float]:
        """A kernel's time over PyTorch's in the classes of `trials.TRIALS` that a problem belongs to."""
        return [self.choice.ratio(*each) for each in self._classes(kind, sizes)]

    def faster(self, kind: str, *sizes: Any) -> bool:
        """Return True if a kernel is faster than PyTorch in all of these classes, or always used."""
        return all(self.choice.faster(*each) for each in self._classes(kind, sizes))

    def _classes(self, kind: str, sizes: tuple[Any, ...]) -> Iterator[tuple[str, Callable[[], Trial]]]:
        chosen = trials.TRIALS[kind]
        for each in chosen.classes(*sizes):
            yield " ".join(map(str, (kind, *each))), partial(chosen.trial, self, *each)

    def attends(self, q: Tensor, values: Tensor, *, slotted: bool = False) -> bool:
        """Return True if `attend` computes such queries (B, H, Q, E) and values (B, H, K, E), and is the faster way.

        slotted: values are (K, slots, H, E).
        """
        possible = (
            q.dtype == values.dtype == torch.float32
            and q.device.type == "cpu"
            and q.shape[3] in HEAD_SIZES
            and values.shape[-1] == q.shape[3]
            and not (torch.is_grad_enabled() and (q.requires_grad or values.requires_grad))
        )
        if not possible:
            return False
        count, size = q.shape[2:]
        if slotted:
            return self.faster("attention to slots", size, values.shape[0])
        return self.faster("attention", size, count, values.shape[2])

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, *, bias: Tensor | None = None, slots: Tensor | None = None
    ) -> Tensor:
        """q (B, H, Q, E), keys and values (B, H, K, E) -> (B, H, Q, E): softmax(q keys' / sqrt(E) + bias) values.

        Args:
            bias: (B, K), contiguous; minus infinity hides a key, but never all keys of a row.
            slots: (B, K) int32: keys and values are (K, slots, H, E), and those of row b at position t are in slot
                ``slots[b, t]``.
        """
        rows, heads, count, size = q.shape
        q, keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, values))
        out = q.new_empty(rows, count, heads, size)
        # The dimensions that hold rows, heads and positions.
        order = (0, 1, 2) if slots is None else (1, 2, 0)
        length = keys.shape[order[2]]
        inputs = (
            q.data_ptr(),
            (_SIZE * 3)(*q.stride()[:3]),
            keys.data_ptr(),
            (_SIZE * 3)(*(keys.stride(i) for i in order)),
            values.data_ptr(),
            (_SIZE * 3)(*(values.stride(i) for i in order)),
        )
        others = (
            None if bias is None else bias.data_ptr(),
            (_SIZE * 5)(rows, heads, count, length, size),
            out.data_ptr(),
            threads(out.numel() * length),
        )
        if count > trials.FEW_QUERIES:
            assert slots is None
            self._library.sparsenmt_attend_many(*inputs, *others)
        elif slots is None:
            self._library.sparsenmt_attend(*inputs, None, 0, *others)
        else:
            self._library.sparsenmt_attend(*inputs, slots.data_ptr(), slots.stride(0), *others)
        return out.transpose(1, 2)

    def log_sums(self, logits: Tensor) -> Tensor:
        """(N, V) -> (N, 1): log of the sum of exponentials."""
        rows, size = logits.shape
        out = logits.new_empty(rows, 1)
        self._library.sparsenmt_log_sums(
            logits.data_ptr(), logits.stride(0), rows, size, out.data_ptr(), threads(logits.numel())
        )
        return out

    def best(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """(N, V) -> values and indices (N, width), best first; equal ones in order. Minus infinity: there is none."""
        rows, size = logits.shape
        values, indices = logits.new_empty(rows, width), logits.new_empty(rows, width, dtype=torch.long)
        shape, found = (logits.stride(0), rows, size, width), (values.data_ptr(), indices.data_ptr())
        self._library.sparsenmt_best(logits.data_ptr(), *shape, *found, threads(logits.numel()))
        return values, indices

    def candidates(
        self, logits: Tensor, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of sentences: log-probabilities, numbers of hypotheses, tokens; (B, width).

        Minus infinity: there is none. NaN: a logit of an open hypothesis is NaN.

        Args:
            logits: (B * J, V); forbidden tokens are set to minus infinity.
            scores: (B, J), contiguous.
            never: forbidden tokens, eight at most.
        """
        buffers = _ContinuationBuffers(scores, logits.shape[1], never, width)
        self._library.sparsenmt_candidates(
            buffers.pointer, logits.data_ptr(), logits.stride(0), threads(logits.numel())
        )
        return buffers.found

    def next(
        self, x: Tensor, weight: PackedMatrix, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`candidates` of x weight' + bias, without materialising all logits; x (B * J, D), contiguous."""
        buffers, rows = _ContinuationBuffers(scores, weight.outer, never, width), x.shape[0]
        cores = threads(rows * weight.outer * weight.inner)
        block = _BLOCK if rows >= cores * _BLOCK else 0
        at_once = cores * block or rows
        logits = x.new_empty(at_once * weight.outer)
        rounded = torch.empty(weight.scratch(at_once), dtype=torch.uint8)
        pointers = buffers.pointer, ctypes.addressof(weight.matrix), x.data_ptr()
        self._library.sparsenmt_next(*pointers, block, logits.data_ptr(), rounded.data_ptr(), cores)
        return buffers.found

    def product(self, x: Tensor, weight: PackedMatrix, *, relu: bool = False, added: Tensor | None = None) -> Tensor:
        """x (..., D) -> relu(x weight' + bias) + added, (..., N); ``added`` of that shape, contiguous."""
        rows = x.reshape(-1, weight.inner).contiguous()
        count = rows.shape[0]
        out = x.new_empty(*x.shape[:-1], weight.outer)
        scratch = torch.empty(weight.scratch(count), dtype=torch.uint8)
        self._library.sparsenmt_product(
            ctypes.addressof(weight.matrix),
            rows.data_ptr(),
            count,
            None if added is None else added.data_ptr(),
            relu,
            out.data_ptr(),
            scratch.data_ptr(),
            threads(out.numel() * weight.inner),
        )
        return out


def threads(work: int) -> int:
    """The number of threads for ``work`` multiplications."""
    return max(1, min(torch.get_num_threads(), work // _THREAD_WORK))


def kernels() -> Kernels | None:
    """The library; None if it cannot be built here or is turned off."""
    return _found() if wanted() else None


def library() -> Library[Kernels]:
    """The library's sources and check."""
    names = ("few.cpp", "many.cpp", "vocabulary.cpp", "products.cpp", "step.cpp", "next.cpp")
    headers = [_FOLDER / name for name in ("vectors.h", "best.h", "few.h", "products.h", "vocabulary.h")]
    return Library("decoding", [_FOLDER / name for name in names], _checked, headers=headers)


@functools.cache
def _found() -> Kernels | None:
    return library().find()


def _checked(path: Path) -> Kernels | None:
    """Load the library; None if it disagrees with PyTorch."""
    found = Kernels(path)
    return found if error(found) <= 1 else None


def _numbers(*shape: int, speed: float = 0.7) -> Tensor:
    """Deterministic numbers of both signs."""
    return (torch.arange(math.prod(shape), dtype=torch.float32).view(shape) * speed).sin() * 2


@torch.no_grad()
def error(found: Kernels) -> float:
    """The largest deviation from PyTorch on small problems, relative to the tolerance."""
    errors = [_attention_error(found), _vocabulary_error(found)]
    if found.has_products:
        errors.append(steps.error(found.step))
        errors += [_product_error(found, dtype) / allowed for dtype, allowed in _PRODUCT_TOLERANCE.items()]
        errors += [_next_error(found, sentences) for sentences in (2, 40)]
    return max(errors)


def _attention_error(found: Kernels) -> float:
    worst = 0.0
    for queries, length, size in ((1, 37, 64), (5, 16, 32), (4, 3, 96), (29, 33, 48), (71, 40, 64)):
        q, bias = _numbers(2, 3, queries, size), _numbers(2, length)
        k, v = _numbers(2, 3, length, size, speed=1.3), _numbers(2, 3, length, size, speed=0.3)
        bias[0, 1] = -math.inf
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, None, None])
        worst = max(worst, steps.distance(found.attend(q, k, v, bias=bias), expected))
        if queries > trials.FEW_QUERIES:
            continue
        slots = torch.tensor([[1], [0]], dtype=torch.int32).repeat(1, length)
        expected = F.scaled_dot_product_attention(q, k.flip(0), v.flip(0))
        stored = (x.permute(2, 0, 1, 3).contiguous() for x in (k, v))
        worst = max(worst, steps.distance(found.attend(q, *stored, slots=slots), expected))
    return worst / _TOLERANCE


def _vocabulary_error(found: Kernels) -> float:
    logits = _numbers(3, 1037, speed=1.1) * 5
    values, indices = found.best(logits, 7)
    expected = logits.topk(7, -1)
    right = torch.equal(values, expected.values) and torch.equal(logits.gather(1, indices), values)
    sums, scores = found.log_sums(logits), _numbers(1, 3)
    totals, parents, tokens = found.candidates(logits.clone(), scores, (never := int(indices[0, 0]),), 7)
    rest = logits.index_fill(1, indices[0, :1], -math.inf)
    expected = ((rest - sums) + scores.view(3, 1)).view(1, -1).topk(7, -1)
    right &= never not in tokens and torch.equal(parents * logits.shape[1] + tokens, expected.indices)
    distances = steps.distance(totals, expected.values), steps.distance(sums, logits.logsumexp(-1, keepdim=True))
    return max(distances) / _TOLERANCE if right else math.inf


def _product_error(found: Kernels, dtype: torch.dtype) -> float:
    x, weight, bias = _numbers(17, 70), _numbers(41, 70, speed=1.3), _numbers(41)
    added = _numbers(17, 41, speed=0.2)
    exact = F.linear(x, weight, bias)
    largest = float(exact.abs().max())
    packed = pack(weight, bias, dtype)
    both = (
        steps.distance(found.product(x, packed), exact),
        steps.distance(found.product(x, packed, relu=True, added=added), exact.relu() + added),
    )
    return max(both) / largest


def _next_error(found: Kernels, sentences: int) -> float:
    """The deviation of `next` from `candidates`, with few or with many rows."""
    x, packed = _numbers(2 * sentences, 20), pack(_numbers(75, 20, speed=1.3), None, torch.float32)
    scores = -_numbers(sentences, 2)
    expected = found.candidates(found.product(x, packed), scores, (0, 70), 5)
    totals, parents, tokens = found.next(x, packed, scores, (0, 70), 5)
    right = torch.equal(parents, expected[1]) and torch.equal(tokens, expected[2])
    return steps.distance(totals, expected[0]) / _TOLERANCE if right else math.inf
