"""The compiled decoding step: one position of every hypothesis through all layers of a decoder in one call.

Shapes: N rows, B sentences, D dimension, F feed-forward dimension, H heads, E head size, T positions so far, the new
one included, K entries of the memory, S slots.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar, cast

import torch
from torch import Tensor

from sparsenmt.native.address import address, allocating, check
from sparsenmt.native.packing import PackedMatrix, PackedMatrixStruct, ProductLayout, fields

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
HEAD_SIZES = frozenset({16, 32, 48, 64, 96, 128})  # heads that attention is compiled for
MATRICES = ("own", "own_out", "query", "cross_out", "inner", "outer")
"""Names of a decoder layer's matrices, in the order of the C struct; own: of self-attention's queries, keys and values
at once, or of a recurrent layer's projections; inner, outer: of the feed-forward network."""


class LayerFunctions:
    """The library's functions for whole layers: steps of a decoder, their floats of scratch, searches, encoders.

    Args:
        library: the library of decoding.
        layout: of the packed matrices that it multiplies.
    """

    def __init__(self, library: ctypes.CDLL, layout: ProductLayout) -> None:
        self.layout, self.scratch = layout, library.sparsenmt_step_scratch
        self.step, self.search = allocating(library.sparsenmt_step), allocating(library.sparsenmt_greedy)
        self.encode = allocating(library.sparsenmt_encode)
        self.scratch.argtypes, self.scratch.restype = [_POINTER], _SIZE
        self.step.argtypes = [_POINTER, _POINTER, _SIZE, *[_POINTER] * 7, ctypes.c_int]
        self.search.argtypes = [_POINTER, ctypes.c_int]
        self.encode.argtypes = [_POINTER, _SIZE, _POINTER, ctypes.c_int]

    def __deepcopy__(self, memo: object) -> LayerFunctions:
        """Return the same object: there is one library."""
        return self


class NormStruct(ctypes.Structure):
    """The C struct of a layer normalisation."""

    _fields_ = fields(_POINTER, "weight", "bias")


class _Layer(ctypes.Structure):
    """The C struct of `PackedLayer`."""

    _fields_ = (
        *fields(PackedMatrixStruct, *MATRICES),
        *fields(NormStruct, "own_norm", "cross_norm", "feed_forward_norm"),
        *fields(_SIZE, "own_largest", "cross_largest", "recurrent"),
        *fields(ctypes.c_float, "own_tolerance", "cross_tolerance"),
    )


class LayerCacheStruct(ctypes.Structure):
    """The C struct of `LayerCache`: addresses of its tensors, null for None, and S."""

    _fields_ = (
        *fields(_POINTER, "keys", "values", "state", "memory_keys", "memory_values", "memory_rows", "memory_bias"),
        ("slots", _SIZE),
    )


class SizesStruct(ctypes.Structure):
    """The C struct of a step's sizes: N, B, D, F, H, T and K in this order, then the stride of ``slots``."""

    _fields_ = (
        *fields(_SIZE, "rows", "sentences", "dimension", "feed_forward", "heads"),
        *fields(_SIZE, "length", "entries", "slot_stride", "pre_norm"),
        ("epsilon", ctypes.c_double),
        ("starts", _POINTER),
    )


def matrix_shapes(size: int, wide: int, *, recurrent: bool = False, cross: bool = True) -> dict[str, tuple[int, int]]:
    """Name -> shape (out, in) of a layer's matrices, in the order of the C struct, with D = ``size`` and F = ``wide``.

    Args:
        recurrent: the layer has a recurrent cell in the place of self-attention.
        cross: the layer has cross-attention.
    """
    shapes = {name: (size, size) for name in MATRICES}
    shapes |= {"own": ((2 if recurrent else 3) * size, size), "inner": (wide, size), "outer": (size, wide)}
    left_out = ["own_out"] * recurrent + ["query", "cross_out"] * (not cross)
    return {name: shape for name, shape in shapes.items() if name not in left_out}


@dataclass(frozen=True)
class NormWeights:
    """The parameters of a layer normalisation: weight and bias (D), fp32."""

    weight: Tensor
    bias: Tensor

    def pointers(self, size: int) -> NormStruct:
        """Make the C struct, for D = ``size``; valid as long as this object."""
        return NormStruct(*(address(each, torch.float32, size) for each in (self.weight, self.bias)))


@dataclass(frozen=True)
class LayerWeights:
    """The matrices of a layer, in the order of `matrix_shapes`, and its norms, in the order of the C struct."""

    matrices: tuple[PackedMatrix, ...]
    norms: tuple[NormWeights, ...]

    @property
    def weights(self) -> int:
        """The number of weights in the matrices."""
        return sum(each.inner * each.outer for each in self.matrices)

    def check_shapes(self, size: int, wide: int, **kind: bool) -> None:
        """Raise ValueError unless the matrices have the shapes of a layer; ``kind``: options of `matrix_shapes`."""
        expected = list(matrix_shapes(size, wide, **kind).values())
        check([(each.outer, each.inner) for each in self.matrices] == expected, f"matrices of the shapes {expected}")

    def structure(self, size: int, wide: int) -> ctypes.Structure:
        """Make the C struct, for D = ``size`` and F = ``wide``; valid as long as this object."""
        raise NotImplementedError


@dataclass(frozen=True)
class PackedLayer(LayerWeights):
    """The parameters of a decoder layer.

    Args:
        matrices: self-attention's queries, keys and values in one; self-attention's output; cross-attention's queries;
            cross-attention's output; the two of the feed-forward network, with a ReLU after the first. With
            ``recurrent``, both projections of the cell in one in the place of the first two.
        norms: of self-attention, cross-attention and the feed-forward network.
        largest: of self- and cross-attention: the number of largest scores that the softmax is over; 0: all.
        tolerances: of both: where t is the last of the largest scores, those from t - tolerance * (1 + |t|) on take
            part, too, so that rounding decides nothing.
        recurrent: in the place of self-attention, the state c becomes f c + (1 - f) z of the projections z and g, with
            f = sigmoid(g), and its ReLU is the output.
    """

    largest: tuple[int, int] = (0, 0)
    tolerances: tuple[float, float] = (0.0, 0.0)
    recurrent: bool = False

    def structure(self, size: int, wide: int) -> _Layer:
        """Make the C struct, for D = ``size`` and F = ``wide``; valid as long as this object."""
        self.check_shapes(size, wide, recurrent=self.recurrent)
        check(min(self.largest) >= 0, "a number of largest scores that is not negative")
        matrices = [each.struct for each in self.matrices]
        if self.recurrent:
            matrices.insert(1, PackedMatrixStruct())
        parts = (*matrices, *(each.pointers(size) for each in self.norms))
        return _Layer(*parts, *self.largest, self.recurrent, *self.tolerances)


@dataclass(frozen=True)
class LayerCache:
    """The keys and values that a layer reads in a step, fp32; those of the new position, T - 1, are written by it."""

    keys: Tensor | None  # (T, S, H, E); None with a state
    values: Tensor | None  # (T, S, H, E)
    memory_keys: Tensor  # (rows of the memory, H, K, E), contiguous
    memory_values: Tensor  # (rows of the memory, H, K, E), contiguous
    memory_rows: Tensor | None  # (B) int64: each sentence's row of these; None: all, in order
    memory_bias: Tensor | None  # (B, ..., K), contiguous: added to the scores; minus infinity hides an entry
    state: Tensor | None = None  # (N, D), contiguous: of a recurrent layer, before the new position; it is overwritten

    def structure(self, sizes: SizesStruct) -> LayerCacheStruct:
        """Make the C struct, for a step of these sizes; valid as long as this object."""
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
        """Make the C struct of the memory alone; ``own``: values of its other fields, otherwise null or 0."""
        memory, bias = (sizes.heads, sizes.entries, sizes.dimension // sizes.heads), self.memory_bias
        stored = sizes.sentences if self.memory_rows is None else self.memory_keys.shape[0]
        check(bias is None or bias.numel() == sizes.sentences * sizes.entries, "a bias for each entry of the memory")
        return LayerCacheStruct(
            memory_keys=address(self.memory_keys, torch.float32, stored, *memory),
            memory_values=address(self.memory_values, torch.float32, stored, *memory),
            memory_rows=None if self.memory_rows is None else address(self.memory_rows, torch.int64, sizes.sentences),
            memory_bias=None if bias is None else address(bias, torch.float32, *bias.shape),
            **own,
        )


Layer = TypeVar("Layer", bound=LayerWeights)


class PackedStack(Generic[Layer]):
    """The layers of an encoder or a decoder, one for each execution step; they keep their tensors alive.

    Args:
        functions: of the library.
        heads: H, of every attention.
        last: of a decoder, the normalisation after the last layer; None: there is none.
        pre_norm: True: the input of each part of a layer is normalised; False: its sum with the part's output.
        epsilon: of all normalisations.
    """

    def __init__(
        self,
        functions: LayerFunctions,
        layers: Sequence[Layer],
        *,
        heads: int,
        last: NormWeights | None = None,
        pre_norm: bool,
        epsilon: float,
    ) -> None:
        self.functions = functions
        self._given, self._norm = tuple(layers), last  # keeps alive what the pointers point to
        self._size, self._wide = layers[0].matrices[-1].outer, layers[0].matrices[-1].inner
        functions.layout.check(*(each for layer in layers for each in layer.matrices))
        whole = self._size % heads == 0 and self._size // heads in HEAD_SIZES
        check(whole, "heads of a size that attention is compiled for")
        structures = [layer.structure(self._size, self._wide) for layer in layers]
        self._layers = (type(structures[0]) * len(layers))(*structures)
        self.last = NormStruct(None, None) if last is None else last.pointers(self._size)
        self._heads, self._pre_norm, self._epsilon = heads, pre_norm, epsilon

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Make a copy whose structs point to its own tensors."""
        layers, last = copy.deepcopy((self._given, self._norm), memo)
        return type(self)(
            self.functions, layers, heads=self._heads, last=last, pre_norm=self._pre_norm, epsilon=self._epsilon
        )


class LayerStack(PackedStack[PackedLayer]):
    """The layers of a decoder."""

    def sizes(self, rows: int, sentences: int, entries: int) -> SizesStruct:
        """Make the C struct of a step with N, B and K; the fields for self-attention (T, slots, starts) are 0."""
        sizes = SizesStruct(rows, sentences, self._size, self._wide, self._heads)
        sizes.entries, sizes.pre_norm, sizes.epsilon = entries, self._pre_norm, self._epsilon
        return sizes

    def recurrent_layers(self, count: int) -> int:
        """The address of the layers' C structs; ValueError unless the first ``count`` exist and are recurrent."""
        check(0 < count <= len(self._given), "a cache for each layer that runs")
        check(all(layer.recurrent for layer in self._given[:count]), "layers that are recurrent")
        return ctypes.addressof(self._layers)

    def run(
        self, x: Tensor, caches: Sequence[LayerCache], slots: Tensor, threads: int, starts: Tensor | None = None
    ) -> Tensor:
        """x (N, D), contiguous, which is overwritten -> (N, D), after as many layers as there are caches.

        Args:
            caches: of the first layers; they share B, K and ``memory_rows``. The rows of a sentence are adjacent.
            slots: (N, T) int32: the slot of a row's keys and values at every position; at the last, row n is in slot n.
            threads: that share the work.
            starts: (B) int64, contiguous: the first position that each sentence's rows attend to; None: 0.
        """
        check(0 < len(caches) <= len(self._layers), "a cache for each layer that runs")
        (rows, length), memory, left = slots.shape, caches[0].memory_keys, caches[0].memory_rows
        sentences = memory.shape[0] if left is None else left.shape[0]
        check(length > 0 and sentences > 0 and rows % sentences == 0, "a position, and as many rows in every sentence")
        sizes = self.sizes(rows, sentences, memory.shape[2])
        sizes.length, sizes.slot_stride = length, slots.stride(0)
        sizes.starts = None if starts is None else address(starts, torch.int64, sentences)
        given = address(x, torch.float32, rows, self._size)
        scratch = x.new_empty(self.functions.scratch(ctypes.addressof(sizes)))
        out = torch.empty_like(x)
        for layer, cache in zip(self._given, caches, strict=False):
            check(layer.recurrent == (cache.state is not None), "a state for each recurrent layer, and no other")
        structures = (LayerCacheStruct * len(caches))(*(cache.structure(sizes) for cache in caches))
        self.functions.step(
            *(ctypes.addressof(self._layers), ctypes.addressof(structures), len(caches)),
            *(self.last.weight, self.last.bias, ctypes.addressof(sizes)),
            *(address(slots, torch.int32, rows, length, free=1), given),
            *(scratch.data_ptr(), out.data_ptr(), threads),
        )
        return out
