"""The compiled kernels of decoding as functions on tensors: fp32, on the CPU.

Shapes: B rows or sentences, J hypotheses a sentence, H heads, Q queries, K keys, E head size, N rows, V vocabulary,
D inner dimension.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.address import address, check
from sparsenmt.native.agreement import distance, largest_error, numbers
from sparsenmt.native.choice import Choices
from sparsenmt.native.layer_checks import encoder_error, search_error, step_error
from sparsenmt.native.library import Library, LoadedLibrary, wanted
from sparsenmt.native.packing import KINDS, PackedMatrix, ProductLayout, RowTable, fields, pack
from sparsenmt.native.sources import DECODING, set_of
from sparsenmt.native.steps import HEAD_SIZES, LayerFunctions
from sparsenmt.native.token_lists import MOST_FORBIDDEN, TokenLists

_TOLERANCE = 1e-5  # of an absolute difference; of products, over their largest result
_PRODUCT_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.int8: 4e-2}
FEW_QUERIES = 8  # queries up to which the kernel copies no keys
MOST_IN_ORDER = 64  # the largest width of `Kernels.best`


_POINTER, _NUMBER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_FUNCTIONS = {
    "sparsenmt_log_sums": [_POINTER, *[_SIZE] * 3, _POINTER, _NUMBER],
    "sparsenmt_best": [_POINTER, *[_SIZE] * 4, _POINTER, _POINTER, _NUMBER],
    "sparsenmt_candidates": [_POINTER, _POINTER, _SIZE, _NUMBER],
    "sparsenmt_product": [_POINTER, _POINTER, _SIZE, _POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER],
}
_ALLOCATING = {
    "sparsenmt_attend": [*[_POINTER] * 7, _SIZE, *[_POINTER] * 3, _NUMBER],
    "sparsenmt_attend_many": [*[_POINTER] * 9, _NUMBER],
    "sparsenmt_next": [*[_POINTER] * 3, _NUMBER],
    "sparsenmt_next_listed": [*[_POINTER] * 4, _NUMBER],
}


class _Continuations(ctypes.Structure):
    """The C struct of a search for continuations: its sizes, and the addresses of its inputs, scratch and results."""

    _fields_ = (
        *fields(_SIZE, "sentences", "hypotheses", "size", "width", "count"),
        *fields(_POINTER, "never", "scores", "mask", "values", "indices", "totals", "parents", "tokens"),
    )


class _ContinuationBuffers:
    """The C struct of a search for the best continuations, and the tensors that it points to.

    Args:
        scores, never, width, mask: as for `Kernels.candidates`.
        size: V.

    Attributes:
        found: results, as those of `Kernels.candidates`, written by the call.
        pointer: the address of the C struct; valid as long as this object.
    """

    def __init__(self, scores: Tensor, size: int, never: Sequence[int], width: int, mask: Tensor | None = None) -> None:
        sentences, opened = scores.shape
        check(len(set(never)) == len(never) <= MOST_FORBIDDEN, f"at most {MOST_FORBIDDEN} different forbidden tokens")
        check(all(0 <= token < size for token in never), "forbidden tokens that are in the vocabulary")
        check(width > 0, "at least one continuation")
        totals, found = scores.new_empty(sentences, width), scores.new_empty(2, sentences, width, dtype=torch.long)
        rows = sentences * opened * width
        values, indices = scores.new_empty(rows), scores.new_empty(rows, dtype=torch.long)
        parents, tokens = found.unbind()
        self.found = totals, parents, tokens
        forbidden = (_SIZE * len(never))(*never)
        self._held = forbidden, scores, mask, values, indices  # keeps alive what the pointers point to
        mine = address(scores, torch.float32, sentences, opened)
        added = None if mask is None else address(mask, torch.float32, sentences, size)
        pointers = (mine, added, *(x.data_ptr() for x in (values, indices, *self.found)))
        shape = sentences, opened, size, width, len(never)
        self._structure = _Continuations(*shape, ctypes.addressof(forbidden), *pointers)
        self.pointer = ctypes.addressof(self._structure)


class Kernels(LoadedLibrary):
    """The functions of the library of decoding.

    Attributes:
        layout: of the packed matrices that it multiplies.
        layers: its functions for whole layers.
        choice: the measured ratios for its instruction set.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _FUNCTIONS, _ALLOCATING)
        library = self.library
        has = library.sparsenmt_has_products
        has.argtypes, has.restype = [_SIZE], _NUMBER
        dtypes = frozenset(dtype for dtype, kind in KINDS.items() if has(kind))
        library.sparsenmt_int8_most_of_pair.argtypes, library.sparsenmt_int8_most_of_pair.restype = [], _NUMBER
        self.layout = ProductLayout(dtypes, int(library.sparsenmt_int8_most_of_pair()))
        self.layers = LayerFunctions(library, self.layout)
        self.choice = Choices(set_of(path))

    def _threads(self, work: int) -> int:
        return threads(work) if self.cores is None else self.cores

    def faster(self, kind: str, *sizes: Any) -> bool:
        """Return True if a kernel is to be used for such sizes, see `Choices.prefers`."""
        return self.choice.prefers(kind, *sizes)

    def attends(self, q: Tensor, values: Tensor) -> bool:
        """Return True if `attend` computes such queries (B, H, Q, E) and values (B, H, K, E), and is the faster way."""
        return self._attends(q, values) and self.faster("attention", q.shape[3], q.shape[2], values.shape[2])

    def attends_to_slots(self, q: Tensor, values: Tensor, *, in_order: bool) -> bool:
        """`attends` for values (K, slots, H, E). ``in_order``: row n is in slot n, so that PyTorch need not gather."""
        kind = f"attention to slots in {'order' if in_order else 'any order'}"
        return self._attends(q, values) and self.faster(kind, q.shape[3], values.shape[0])

    def _attends(self, q: Tensor, values: Tensor) -> bool:
        """Return True if `attend` computes such queries and values: fp32 on the CPU, without gradients."""
        return (
            q.dtype == values.dtype == torch.float32
            and q.device.type == "cpu"
            and q.shape[3] in HEAD_SIZES
            and values.shape[-1] == q.shape[3]
            and not (torch.is_grad_enabled() and (q.requires_grad or values.requires_grad))
        )

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, *, bias: Tensor | None = None, slots: Tensor | None = None
    ) -> Tensor:
        """q (B, H, Q, E), keys and values (B, H, K, E) -> (B, H, Q, E): softmax(q keys' / sqrt(E) + bias) values.

        The result is a view of contiguous (B, Q, H, E).

        Args:
            bias: (B, K) or with axes of 1 in between, contiguous; minus infinity hides a key, but never all of a row.
            slots: (B, K) int32: keys and values are (K, slots, H, E), and those of row b at position t are in slot
                ``slots[b, t]``.
        """
        rows, heads, count, size = q.shape
        check(size in HEAD_SIZES, "heads of a size that attention is compiled for")
        check(bias is None or bias.numel() == rows * keys.shape[2 if slots is None else 0], "a bias for each key")
        check(slots is None or count <= FEW_QUERIES, "few queries where keys are in slots")
        q, keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, values))
        out = q.new_empty(rows, count, heads, size)
        # The dimensions that hold rows, heads and positions.
        order = (0, 1, 2) if slots is None else (1, 2, 0)
        length = keys.shape[order[2]]
        stored = (rows, heads, length, size) if slots is None else (length, keys.shape[1], heads, size)
        inputs = (
            address(q, torch.float32, rows, heads, count, size, free=3),
            (_SIZE * 3)(*q.stride()[:3]),
            address(keys, torch.float32, *stored, free=3),
            (_SIZE * 3)(*(keys.stride(i) for i in order)),
            address(values, torch.float32, *stored, free=3),
            (_SIZE * 3)(*(values.stride(i) for i in order)),
        )
        others = (
            None if bias is None else address(bias, torch.float32, *bias.shape),
            (_SIZE * 5)(rows, heads, count, length, size),
            out.data_ptr(),
            self._threads(out.numel() * length),
        )
        if count > FEW_QUERIES:
            self.library.sparsenmt_attend_many(*inputs, *others)
        elif slots is None:
            self.library.sparsenmt_attend(*inputs, None, 0, *others)
        else:
            own = address(slots, torch.int32, rows, length, free=1)
            self.library.sparsenmt_attend(*inputs, own, slots.stride(0), *others)
        return out.transpose(1, 2)

    def log_sums(self, logits: Tensor) -> Tensor:
        """(N, V) -> (N, 1): log of the sum of exponentials."""
        rows, size = logits.shape
        out = logits.new_empty(rows, 1)
        given = address(logits, torch.float32, rows, size, free=1), logits.stride(0)
        self.library.sparsenmt_log_sums(*given, rows, size, out.data_ptr(), self._threads(logits.numel()))
        return out

    def best(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """(N, V) -> values and indices (N, width), best first, of equal ones the first first. Minus infinity: none."""
        rows, size = logits.shape
        values, indices = logits.new_empty(rows, width), logits.new_empty(rows, width, dtype=torch.long)
        check(width > 0, "a width of at least 1")
        given = address(logits, torch.float32, rows, size, free=1), logits.stride(0)
        found = values.data_ptr(), indices.data_ptr()
        self.library.sparsenmt_best(*given, rows, size, width, *found, self._threads(logits.numel()))
        return values, indices

    def candidates(
        self, logits: Tensor, scores: Tensor, never: Sequence[int], width: int, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of sentences: log-probabilities, numbers of hypotheses, tokens; (B, width).

        Minus infinity: there is none. NaN, in all of a sentence: a logit of an open hypothesis is NaN.

        Args:
            logits: (B * J, V); forbidden tokens are set to minus infinity, after probabilities are known.
            scores: (B, J) log-probabilities so far, contiguous; minus infinity: the hypothesis is closed.
            never: forbidden tokens, `MOST_FORBIDDEN` at most.
            mask: (B, V), added to the logits of a sentence's hypotheses; contiguous.
        """
        buffers = _ContinuationBuffers(scores, logits.shape[1], never, width, mask)
        given = address(logits, torch.float32, scores.numel(), logits.shape[1], free=1), logits.stride(0)
        self.library.sparsenmt_candidates(buffers.pointer, *given, self._threads(logits.numel()))
        return buffers.found

    def next(
        self,
        x: Tensor,
        weight: PackedMatrix,
        scores: Tensor,
        never: Sequence[int],
        width: int,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`candidates` of x weight' + bias, without materialising all logits; x (B * J, D), contiguous."""
        buffers, rows = _ContinuationBuffers(scores, weight.outer, never, width, mask), x.shape[0]
        check(rows == scores.numel(), "as many scores as rows")
        pointers = buffers.pointer, self._matrix(weight), address(x, torch.float32, rows, weight.inner)
        self.library.sparsenmt_next(*pointers, self._threads(rows * weight.outer * weight.inner))
        return buffers.found

    def next_listed(
        self, x: Tensor, table: RowTable, lists: TokenLists, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`candidates` of x table' + bias among the tokens of each sentence's list; x (B * J, D), contiguous.

        never: as for `candidates`; these tokens must be in every list, before all others.
        """
        buffers, (rows, inner) = _ContinuationBuffers(scores, table.outer, never, width), x.shape
        sentences = len(lists)
        check(rows == scores.numel() and len(lists) == scores.shape[0], "as many scores as rows, and a list each")
        self.layout.check(table)
        begins = not sentences or max(never, default=-1) < int(lists.count.min())
        check(begins, "lists that begin with the forbidden tokens")
        check(inner == table.inner and lists.size == table.outer, "states and lists of the table's size")
        own = lists.structure()
        pointers = buffers.pointer, ctypes.addressof(table.struct), ctypes.addressof(own)
        cores = min(self._threads(len(lists.tokens) * inner), max(sentences, 1))  # a thread takes whole sentences
        self.library.sparsenmt_next_listed(*pointers, address(x, torch.float32, rows, inner), cores)
        return buffers.found

    def product(self, x: Tensor, weight: PackedMatrix, *, relu: bool = False, added: Tensor | None = None) -> Tensor:
        """x (..., D) -> x weight' + bias, (..., N), with a ReLU if asked for, plus ``added`` (..., N), contiguous."""
        check(x.shape[-1] == weight.inner, f"rows of {weight.inner} numbers")
        rows = x.reshape(-1, weight.inner).contiguous()
        count = rows.shape[0]
        out = x.new_empty(*x.shape[:-1], weight.outer)
        scratch = torch.empty(weight.scratch(count), dtype=torch.uint8)
        self.library.sparsenmt_product(
            self._matrix(weight),
            address(rows, torch.float32, count, weight.inner),
            count,
            None if added is None else address(added, torch.float32, *out.shape),
            relu,
            out.data_ptr(),
            scratch.data_ptr(),
            self._threads(out.numel() * weight.inner),
        )
        return out

    def _matrix(self, weight: PackedMatrix) -> int:
        """The address of a matrix's C struct; ValueError if the library has no products of its dtype."""
        self.layout.check(weight)
        return ctypes.addressof(weight.struct)


def threads(work: int) -> int:
    """The number of threads for ``work`` multiplications."""
    return max(1, min(torch.get_num_threads(), work // LoadedLibrary.least_work))


def kernels() -> Kernels | None:
    """The library; None if there is none for this processor, or it is turned off."""
    return _found() if wanted() else None


def kernels_for(x: Tensor) -> Kernels | None:
    """The library, for tensors in the CPU's memory; for those of another device it is not even loaded."""
    return kernels() if x.device.type == "cpu" else None


@functools.cache
def _found() -> Kernels | None:
    return Library(DECODING, Kernels, error).find()


def _numbers(*shape: int, speed: float = 0.7) -> Tensor:
    """Test numbers between -2 and 2."""
    return 2 * numbers(*shape, speed=speed)


@torch.no_grad()
def error(found: Kernels) -> float:
    """The largest deviation from PyTorch on small problems, over the tolerance (`largest_error`)."""

    def errors(threads: int) -> Iterator[float]:
        yield from (_attention_error(found), _vocabulary_error(found))
        for dtype in found.layout.dtypes:
            yield from (_product_error(found, dtype) / _PRODUCT_TOLERANCE[dtype], _listed_error(found, dtype))
        yield from (error_of(found.layers, threads) for error_of in (step_error, search_error, encoder_error))
        yield from (_next_error(found, sentences) for sentences in (2, 90))

    return largest_error(found, errors)


def _attention_error(found: Kernels) -> float:
    """The deviation of `attend`, with and without a bias and slots, over the tolerance."""
    worst = 0.0
    sizes = ((1, 37, 64), (5, 16, 32), (4, 3, 96), (2, 9, 16), (7, 5, 128), (9, 7, 16), (29, 33, 48), (71, 40, 64))
    for queries, length, size in sizes:
        q, bias = _numbers(2, 3, queries, size), _numbers(2, length)
        k, v = _numbers(2, 3, length, size, speed=1.3), _numbers(2, 3, length, size, speed=0.3)
        bias[0, 1] = -math.inf
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, None, None])
        worst = max(worst, distance(found.attend(q, k, v, bias=bias), expected))
        worst = max(worst, distance(found.attend(q, k, v), F.scaled_dot_product_attention(q, k, v)))
        if queries > FEW_QUERIES:
            continue
        slots = torch.tensor([[1], [0]], dtype=torch.int32).repeat(1, length)
        expected = F.scaled_dot_product_attention(q, k.flip(0), v.flip(0))
        stored = (x.permute(2, 0, 1, 3).contiguous() for x in (k, v))
        worst = max(worst, distance(found.attend(q, *stored, slots=slots), expected))
    return worst / _TOLERANCE


def _vocabulary_error(found: Kernels) -> float:
    """The deviation of `best`, `log_sums` and `candidates`, over the tolerance; infinity if a token is another one."""
    logits = _numbers(3, 1037, speed=1.1) * 5
    values, indices = found.best(logits, 7)
    expected = logits.topk(7, -1)
    right = torch.equal(values, expected.values) and torch.equal(logits.gather(1, indices), values)
    sums, scores = found.log_sums(logits), _numbers(1, 3)
    totals, parents, tokens = found.candidates(logits.clone(), scores, (never := int(indices[0, 0]),), 7)
    rest = logits.index_fill(1, indices[0, :1], -math.inf)
    expected = ((rest - sums) + scores.view(3, 1)).view(1, -1).topk(7, -1)
    right &= never not in tokens and torch.equal(parents * logits.shape[1] + tokens, expected.indices)
    distances = distance(totals, expected.values), distance(sums, logits.logsumexp(-1, keepdim=True))
    return max(distances) / _TOLERANCE if right else math.inf


def _product_error(found: Kernels, dtype: torch.dtype) -> float:
    """The largest deviation, relative to the largest result, for every height of a tile and for several tiles."""
    x, weight, bias = _numbers(17, 70), _numbers(41, 70, speed=1.3), _numbers(41)
    added = _numbers(17, 41, speed=0.2)
    exact = F.linear(x, weight, bias)
    packed, worst = found.layout.pack(weight, bias, dtype), 0.0
    for rows in (*range(1, 15), 17):
        result, more = found.product(x[:rows], packed), found.product(x[:rows], packed, relu=True, added=added[:rows])
        worst = max(worst, distance(result, exact[:rows]))
        worst = max(worst, distance(more, exact[:rows].relu() + added[:rows]))
    return worst / float(exact.abs().max())


def _next_error(found: Kernels, sentences: int) -> float:
    """The deviation of `next` from `candidates` of the product, over the tolerance; infinity if a token is another."""
    x, packed = _numbers(2 * sentences, 20), pack(_numbers(75, 20, speed=1.3), None, torch.float32)
    scores = -_numbers(sentences, 2)
    expected = found.candidates(found.product(x, packed), scores, (0, 70), 5)
    totals, parents, tokens = found.next(x, packed, scores, (0, 70), 5)
    right = torch.equal(parents, expected[1]) and torch.equal(tokens, expected[2])
    mask = torch.zeros(sentences, 75).masked_fill_(_numbers(sentences, 75) > 0, -math.inf)
    logits = found.product(x, packed) + mask.repeat_interleave(2, 0)
    masked = found.next(x, packed, scores, (0, 70), 5, mask), found.candidates(logits, scores, (0, 70), 5)
    right &= all(torch.equal(*each) for each in zip(*masked, strict=True))
    return distance(totals, expected[0]) / _TOLERANCE if right else math.inf


def _listed_error(found: Kernels, dtype: torch.dtype) -> float:
    """The same of `next_listed` from `candidates` of the product with a mask, for lists of many lengths."""
    weight, bias = _numbers(299, 64, speed=1.3), _numbers(299, speed=0.9)
    x, scores = _numbers(24, 64), -_numbers(8, 3)
    allowed = torch.arange(299) < torch.tensor([4, 5, 15, 16, 17, 100, 298, 299])[:, None]
    allowed[5:] &= (torch.arange(299) < 4) | (torch.arange(299) % torch.tensor([2, 3, 1])[:, None] == 0)
    logits = found.product(x, found.layout.pack(weight, bias, dtype)).view(8, 3, 299)
    logits = logits.masked_fill(~allowed[:, None], -math.inf).view(24, 299)
    expected = found.candidates(logits, scores, (0, 2), 6)
    table = found.layout.row_table(weight, bias, dtype)
    totals, parents, tokens = found.next_listed(x, table, TokenLists.of(allowed), scores, (0, 2), 6)
    real = expected[0] > -math.inf
    same = ((parents == expected[1]) & (tokens == expected[2]) | ~real).all()
    near = distance(totals[real], expected[0][real]) / _TOLERANCE
    return near if bool(same) and torch.equal(totals > -math.inf, real) else math.inf
