"""The compiled decoding step: one position of every hypothesis through all layers of a decoder in one call.

Shapes: N rows, B sentences, D dimension, F feed-forward dimension, H heads, E head size, T positions so far, the new
one included, K entries of the memory, S slots.
"""

from __future__ import annotations

import copy
import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.address import address, allocating, check
from sparsenmt.native.packing import PackedMatrix, PackedMatrixStruct, ProductLayout, fields, pack

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
HEAD_SIZES = frozenset({16, 32, 48, 64, 96, 128})  # heads that attention is compiled for
MATRICES = ("own", "own_out", "query", "cross_out", "inner", "outer")
_TOLERANCE = 1e-5


class StepFunctions:
    """The library's functions for a decoding step.

    Args:
        layout: of the packed matrices that it multiplies.
    """

    def __init__(self, library: ctypes.CDLL, layout: ProductLayout) -> None:
        self.layout = layout
        self.run = allocating(library.sparsenmt_step)
        self.run.argtypes = [_POINTER, _POINTER, _SIZE, *[_POINTER] * 7, ctypes.c_int]
        self.greedy = allocating(library.sparsenmt_greedy)
        self.greedy.argtypes = [_POINTER, ctypes.c_int]
        self.scratch = library.sparsenmt_step_scratch
        self.scratch.argtypes = [_POINTER]
        self.scratch.restype = _SIZE

    def __deepcopy__(self, memo: object) -> StepFunctions:
        """Return the same object: there is one library."""
        return self


class NormStruct(ctypes.Structure):
    """The C struct of a layer normalisation."""

    _fields_ = fields(_POINTER, "weight", "bias")


class _Layer(ctypes.Structure):
    _fields_ = (
        *fields(PackedMatrixStruct, *MATRICES),
        *fields(NormStruct, "own_norm", "cross_norm", "feed_forward_norm"),
        *fields(_SIZE, "own_largest", "cross_largest", "recurrent"),
        *fields(ctypes.c_float, "own_tolerance", "cross_tolerance"),
    )


class LayerCacheStruct(ctypes.Structure):
    """The C struct of what a layer reads."""

    _fields_ = (
        *fields(_POINTER, "keys", "values", "state", "memory_keys", "memory_values", "memory_rows", "memory_bias"),
        ("slots", _SIZE),
    )


class SizesStruct(ctypes.Structure):
    """The C struct of the sizes of a step."""

    _fields_ = (
        *fields(_SIZE, "rows", "sentences", "dimension", "feed_forward", "heads"),
        *fields(_SIZE, "length", "entries", "slot_stride", "pre_norm"),
        ("epsilon", ctypes.c_double),
        ("starts", _POINTER),
    )


@dataclass(frozen=True)
class NormWeights:
    """The parameters of a layer normalisation: weight and bias (D), fp32."""

    weight: Tensor
    bias: Tensor

    def pointers(self, size: int) -> NormStruct:
        """The C struct, D = ``size``."""
        return NormStruct(*(address(each, torch.float32, size) for each in (self.weight, self.bias)))


@dataclass(frozen=True)
class PackedLayer:
    """The parameters of a decoder layer.

    Args:
        matrices: self-attention's queries, keys and values in one; self-attention's output; cross-attention's queries;
            cross-attention's output; the two of the feed-forward network, with a ReLU after the first. With
            ``recurrent``, both projections of the cell in one in the place of the first two.
        norms: of self-attention, cross-attention and the feed-forward network.
        largest: of self- and cross-attention: the number of largest scores that the softmax is over; 0: all.
        tolerances: of both: scores from t - tolerance * (1 + |t|) on, t the last of the largest, take part, too.
        recurrent: in the place of self-attention, the state c becomes f c + (1 - f) z of the projections z and g, with
            f = sigmoid(g), and its ReLU is the output.
    """

    matrices: tuple[PackedMatrix, ...]
    norms: tuple[NormWeights, ...]
    largest: tuple[int, int] = (0, 0)
    tolerances: tuple[float, float] = (0.0, 0.0)
    recurrent: bool = False

    @property
    def weights(self) -> int:
        """The number of weights in the matrices."""
        return sum(each.inner * each.outer for each in self.matrices)

    def structure(self, size: int, wide: int) -> _Layer:
        """The C struct, D = ``size`` and F = ``wide``."""
        own = [(2 * size, size)] if self.recurrent else [(3 * size, size), (size, size)]
        expected = [*own, *[(size, size)] * 2, (wide, size), (size, wide)]
        check([(each.outer, each.inner) for each in self.matrices] == expected, f"matrices of the shapes {expected}")
        check(min(self.largest) >= 0, "a number of largest scores that is not negative")
        matrices = [each.struct for each in self.matrices]
        if self.recurrent:
            matrices.insert(1, PackedMatrixStruct())
        parts = (*matrices, *(each.pointers(size) for each in self.norms))
        return _Layer(*parts, *self.largest, self.recurrent, *self.tolerances)


@dataclass(frozen=True)
class LayerCache:
    """The keys and values that a layer reads, fp32; the new position of self-attention's is written."""

    keys: Tensor | None  # (T, S, H, E); None with a state
    values: Tensor | None  # (T, S, H, E)
    memory_keys: Tensor  # (..., H, K, E), contiguous
    memory_values: Tensor  # (..., H, K, E), contiguous
    memory_rows: Tensor | None  # (B) int64: each sentence's row of these; None: all, in order
    memory_bias: Tensor | None  # (B, ..., K), contiguous: added to the scores; minus infinity hides an entry
    state: Tensor | None = None  # (N, D), contiguous: of a recurrent layer, before the new position; it is overwritten

    def structure(self, sizes: SizesStruct) -> LayerCacheStruct:
        """The C struct."""
        if self.keys is None or self.values is None:
            check(self.state is not None, "a state, where there are no keys and values")
            state = cast(Tensor, self.state)
            return self.memory_structure(sizes, state=address(state, torch.float32, sizes.rows, sizes.dimension))
        length, slots, *_ = self.keys.shape
        check(length >= sizes.length and slots >= sizes.rows, "a slot for each row, at every position")
        shape = (length, slots, sizes.heads, sizes.dimension // sizes.heads)
        keys, values = (address(each, torch.float32, *shape) for each in (self.keys, self.values))
        return self.memory_structure(sizes, keys=keys, values=values, slots=slots)

    def memory_structure(self, sizes: SizesStruct, **own: int) -> LayerCacheStruct:
        """The C struct of the memory alone. ``own``: its other fields."""
        memory, bias = (sizes.heads, sizes.entries, sizes.dimension // sizes.heads), self.memory_bias
        stored = sizes.sentences if self.memory_rows is None else self.memory_keys.shape[0]
        check(bias is None or bias.numel() == sizes.sentences * sizes.entries, "a bias for each entry of the memory")
        keys, values = (
            address(each, torch.float32, stored, *memory) for each in (self.memory_keys, self.memory_values)
        )
        return LayerCacheStruct(
            memory_keys=keys,
            memory_values=values,
            memory_rows=None if self.memory_rows is None else address(self.memory_rows, torch.int64, sizes.sentences),
            memory_bias=None if bias is None else address(bias, torch.float32, *bias.shape),
            **own,
        )


class LayerStack:
    """The layers of a decoder, one for each execution step.

    Args:
        step: the library's functions.
        heads: of both attentions.
        last: the normalisation after the last layer, if there is one.
    """

    def __init__(
        self,
        step: StepFunctions,
        layers: Sequence[PackedLayer],
        *,
        heads: int,
        last: NormWeights | None,
        pre_norm: bool,
        epsilon: float,
    ) -> None:
        self.step = step
        self._given, self._norm = tuple(layers), last  # keeps alive what the pointers point to
        self._size, self.feed_forward = layers[0].matrices[-1].outer, layers[0].matrices[-1].inner
        step.layout.check(*(each for layer in layers for each in layer.matrices))
        check(
            self._size % heads == 0 and self._size // heads in HEAD_SIZES,
            "heads of a size that attention is compiled for",
        )
        self._layers = (_Layer * len(layers))(*(layer.structure(self._size, self.feed_forward) for layer in layers))
        self.last = NormStruct(None, None) if last is None else last.pointers(self._size)
        self._heads, self._pre_norm, self._epsilon = heads, pre_norm, epsilon

    def __deepcopy__(self, memo: dict[int, object]) -> LayerStack:
        """Make a copy whose structs point to its own tensors."""
        layers, last = copy.deepcopy((self._given, self._norm), memo)
        return LayerStack(
            self.step, layers, heads=self._heads, last=last, pre_norm=self._pre_norm, epsilon=self._epsilon
        )

    def sizes(self, rows: int, sentences: int, entries: int) -> SizesStruct:
        """The C struct of a step without positions of self-attention."""
        sizes = SizesStruct(rows, sentences, self._size, self.feed_forward, self._heads)
        sizes.entries, sizes.pre_norm, sizes.epsilon = entries, self._pre_norm, self._epsilon
        return sizes

    def recurrent_layers(self, count: int) -> int:
        """The address of the first ``count`` layers, which must all be recurrent."""
        check(0 < count <= len(self._given), "a cache for each layer that runs")
        check(all(layer.recurrent for layer in self._given[:count]), "layers that are recurrent")
        return ctypes.addressof(self._layers)

    def run(
        self, x: Tensor, caches: Sequence[LayerCache], slots: Tensor, threads: int, starts: Tensor | None = None
    ) -> Tensor:
        """x (N, D), contiguous, which is overwritten -> (N, D), after as many layers as there are caches.

        Args:
            slots: (N, T) int32: the slot of a row's keys and values at every position; at the last, row n is in slot n.
            starts: (B) int64, contiguous: the first position of each sentence; None: 0.
        """
        check(0 < len(caches) <= len(self._layers), "a cache for each layer that runs")
        (rows, length), memory, left = slots.shape, caches[0].memory_keys, caches[0].memory_rows
        sentences = memory.shape[0] if left is None else left.shape[0]
        check(length > 0 and sentences > 0 and rows % sentences == 0, "a position, and as many rows in every sentence")
        sizes = self.sizes(rows, sentences, memory.shape[2])
        sizes.length, sizes.slot_stride = length, slots.stride(0)
        sizes.starts = None if starts is None else address(starts, torch.int64, sentences)
        given = address(x, torch.float32, rows, self._size)
        scratch = x.new_empty(self.step.scratch(ctypes.addressof(sizes)))
        out = torch.empty_like(x)
        for layer, cache in zip(self._given, caches, strict=False):
            check(layer.recurrent == (cache.state is not None), "a state for each recurrent layer, and no other")
        structures = (LayerCacheStruct * len(caches))(*(cache.structure(sizes) for cache in caches))
        self.step.run(
            ctypes.addressof(self._layers),
            ctypes.addressof(structures),
            len(caches),
            self.last.weight,
            self.last.bias,
            ctypes.addressof(sizes),
            address(slots, torch.int32, rows, length, free=1),
            given,
            scratch.data_ptr(),
            out.data_ptr(),
            threads,
        )
        return out


def numbers(*shape: int, speed: float = 0.7) -> Tensor:
    """Deterministic numbers of both signs."""
    return (torch.arange(math.prod(shape), dtype=torch.float32).view(shape) * speed).sin()


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest absolute difference; infinity for NaN."""
    return float((found - expected).abs().nan_to_num(nan=math.inf).max())


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float, largest: int) -> Tensor:
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias
    if largest:
        scores = scores.masked_fill(scores < scores.topk(largest, -1).values[..., -1:], -math.inf)
    context: Tensor = scores.softmax(-1) @ v
    return context


def gather(stored: Tensor, slots: Tensor) -> Tensor:
    """stored (T, S, H, E), slots (N, T) -> (N, H, T, E)."""
    index = (slots + torch.arange(slots.shape[1]) * stored.shape[1]).flatten()
    picked: Tensor = stored.flatten(0, 1).index_select(0, index).unflatten(0, slots.shape)
    return picked.transpose(1, 2)


def plain_product(weights: Mapping[str, Tensor]) -> Callable[[str, Tensor], Tensor]:
    """Return the product of rows with the matrix of a name, in PyTorch."""
    return lambda name, x: x @ weights[name].T


def plain_layer(
    x: Tensor,
    product: Callable[[str, Tensor], Tensor],
    cache: LayerCache,
    slots: Tensor,
    starts: Tensor,
    heads: int,
    pre_norm: bool,
    largest: Sequence[int],
) -> Tensor:
    """The reference: a layer in PyTorch, with norms of weight 1 and bias 0.

    product: returns the product of the matrix of this name and rows.
    """
    (rows, size), sentences = x.shape, cache.memory_keys.shape[0]

    def before(x: Tensor) -> Tensor:
        return F.layer_norm(x, (size,)) if pre_norm else x

    def after(x: Tensor) -> Tensor:
        return x if pre_norm else F.layer_norm(x, (size,))

    if cache.keys is None or cache.values is None:
        state = cast(Tensor, cache.state)
        candidate, forget = product("own", before(x)).chunk(2, -1)
        x = after(x + state.lerp_(candidate, torch.sigmoid(-forget)).relu())
    else:
        q, k, v = product("own", before(x)).view(rows, 3, heads, -1).unbind(1)
        last = slots.shape[1] - 1
        cache.keys[last, :rows], cache.values[last, :rows] = k, v
        keys, values = gather(cache.keys, slots), gather(cache.values, slots)
        before_start = torch.arange(last + 1) < starts.repeat_interleave(rows // sentences)[:, None]
        hidden = torch.zeros(rows, 1, 1, last + 1).masked_fill(before_start[:, None, None], -math.inf)
        context = _attend(q[:, :, None], keys, values, hidden, largest[0])
        x = after(x + product("own_out", context.reshape(rows, size)))
    q = product("query", before(x)).view(sentences, -1, heads, size // heads).transpose(1, 2)
    seen = 0.0 if cache.memory_bias is None else cache.memory_bias.view(sentences, 1, 1, -1)
    context = _attend(q, cache.memory_keys, cache.memory_values, seen, largest[1])
    x = after(x + product("cross_out", context.transpose(1, 2).reshape(rows, size)))
    return after(x + product("outer", product("inner", before(x)).relu()))


def error(step: StepFunctions, threads: int) -> float:
    """The largest deviation from PyTorch on small problems, relative to the tolerance."""
    cases = ((True, 6, (0, 0)), (True, 60, (2, 3)), (False, 6, (1, 2)), (False, 60, (0, 0)))
    recurrent = ((True, 60, (0, 0), True), (False, 6, (0, 0), True))
    return max(_error(step, threads, *case) for case in (*cases, *recurrent)) / _TOLERANCE


def matrix_shapes(size: int, wide: int, recurrent: bool) -> dict[str, tuple[int, int]]:
    """The shapes of a layer's matrices by name."""
    shapes = {name: (size, size) for name in MATRICES if not (recurrent and name == "own_out")}
    return {**shapes, "own": ((2 if recurrent else 3) * size, size), "inner": (wide, size), "outer": (size, wide)}


def _error(
    step: StepFunctions, threads: int, pre_norm: bool, rows: int, largest: tuple[int, int], recurrent: bool = False
) -> float:
    size, wide, heads, length, entries, sentences = 64, 96, 2, 3, 5, 3
    shapes = matrix_shapes(size, wide, recurrent)
    weights = {name: numbers(*shape, speed=1.1 + 0.2 * i) / 8 for i, (name, shape) in enumerate(shapes.items())}
    norm = NormWeights(torch.ones(size), torch.zeros(size))
    layer = PackedLayer(
        tuple(pack(weight, None, torch.float32) for weight in weights.values()),
        (norm, norm, norm),
        largest,
        recurrent=recurrent,
    )
    bias = numbers(sentences, entries, speed=0.9)
    bias[0, 1] = -math.inf
    shape, own = (sentences, heads, entries, size // heads), (length, rows, heads, size // heads)
    seen = (numbers(*shape, speed=0.5), numbers(*shape, speed=1.7), None, bias)
    written = (None, None) if recurrent else (numbers(*own, speed=0.7), numbers(*own, speed=0.3))
    cache = LayerCache(written[0], written[1], *seen, numbers(rows, size, speed=0.8) if recurrent else None)
    slots = torch.arange(rows, dtype=torch.int32)[:, None].repeat(1, length)
    slots[:, 0] = slots[:, 0].flip(0)
    starts = torch.tensor([0, 1, 2])
    x = numbers(rows, size, speed=0.6)
    unwritten = copy.deepcopy(cache)
    expected = plain_layer(x, plain_product(weights), unwritten, slots, starts, heads, pre_norm, largest)
    last = norm if rows < 32 else None  # with and without, whatever the place of the other norms
    stack = LayerStack(step, [layer], heads=heads, last=last, pre_norm=pre_norm, epsilon=1e-5)
    scattered = [F.pad(each, (0,) * 7 + (2,), value=math.nan) for each in (cache.memory_keys, cache.memory_values)]
    order = torch.tensor([4, 0, 2])  # the memory of two finished sentences stays
    for each, given in zip(scattered, (cache.memory_keys, cache.memory_values), strict=True):
        each[order] = given
    joined = replace(cache, memory_keys=scattered[0], memory_values=scattered[1], memory_rows=order)
    found = stack.run(x.clone(), [joined if pre_norm else cache], slots, threads, starts)
    if last is not None:
        expected = F.layer_norm(expected, (size,))
    return distance(found, expected)
