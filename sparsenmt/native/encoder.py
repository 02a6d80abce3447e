"""The compiled encoder: a batch through all layers in one call, without its padding.

Shapes: B sentences, S positions of the longest, D dimension, F feed-forward dimension, H heads, E head size.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.address import address, allocating, check
from sparsenmt.native.packing import PackedMatrix, PackedMatrixStruct, ProductLayout, fields, pack
from sparsenmt.native.steps import HEAD_SIZES, NormStruct, NormWeights, distance, numbers, plain_product

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
MATRICES = ("own", "own_out", "inner", "outer")
_TOGETHER = 126  # rows of a thread at a time: nine tiles
_BLOCK = 42  # rows of a feed-forward network at a time: three tiles, whose wide rows stay in the cache
_TOLERANCE = 1e-5


class EncoderFunctions:
    """The library's functions for an encoder.

    Args:
        layout: of the packed matrices that it multiplies.
    """

    def __init__(self, library: ctypes.CDLL, layout: ProductLayout) -> None:
        self.layout = layout
        self.run = allocating(library.sparsenmt_encode)
        self.run.argtypes = [_POINTER, _SIZE, _POINTER, ctypes.c_int]

    def __deepcopy__(self, memo: object) -> EncoderFunctions:
        """Return the same object: there is one library."""
        return self


class _EncoderLayer(ctypes.Structure):
    _fields_ = (
        *fields(PackedMatrixStruct, *MATRICES),
        *fields(NormStruct, "own_norm", "feed_forward_norm"),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        *fields(_SIZE, "sentences", "width", "dimension", "feed_forward", "heads", "pre_norm", "together", "block"),
        ("epsilon", ctypes.c_double),
        *fields(_POINTER, "lengths", "x", "out"),
    )


@dataclass(frozen=True)
class PackedEncoderLayer:
    """The parameters of an encoder layer.

    Args:
        matrices: self-attention's queries, keys and values in one; its output; the two of the feed-forward network,
            with a ReLU after the first.
        norms: of self-attention and the feed-forward network.
    """

    matrices: tuple[PackedMatrix, ...]
    norms: tuple[NormWeights, ...]

    @property
    def weights(self) -> int:
        """The number of weights in the matrices."""
        return sum(each.inner * each.outer for each in self.matrices)

    def structure(self, size: int, wide: int) -> _EncoderLayer:
        """The C struct, D = ``size`` and F = ``wide``."""
        expected = list(matrix_shapes(size, wide).values())
        check([(each.outer, each.inner) for each in self.matrices] == expected, f"matrices of the shapes {expected}")
        return _EncoderLayer(*(each.struct for each in self.matrices), *(each.pointers(size) for each in self.norms))


class EncoderStack:
    """The layers of an encoder, one for each execution step.

    Args:
        functions: of the library.
        heads: of self-attention.
    """

    def __init__(
        self,
        functions: EncoderFunctions,
        layers: Sequence[PackedEncoderLayer],
        *,
        heads: int,
        pre_norm: bool,
        epsilon: float,
    ) -> None:
        self._functions, self._given = functions, tuple(layers)  # keeps alive what the pointers point to
        self._size, self._wide = layers[0].matrices[-1].outer, layers[0].matrices[-1].inner
        functions.layout.check(*(each for layer in layers for each in layer.matrices))
        whole = self._size % heads == 0 and self._size // heads in HEAD_SIZES
        check(whole, "heads of a size that attention is compiled for")
        self._layers = (_EncoderLayer * len(layers))(*(layer.structure(self._size, self._wide) for layer in layers))
        self._heads, self._pre_norm, self._epsilon = heads, pre_norm, epsilon

    @property
    def weights(self) -> int:
        """The number of weights in the matrices of a layer."""
        return self._given[0].weights

    @property
    def sizes(self) -> tuple[torch.dtype, int, int, int]:
        """The dtype of the products, the model and the feed-forward dimension, the heads."""
        return self._given[0].matrices[-1].dtype, self._size, self._wide, self._heads

    def __deepcopy__(self, memo: dict[int, object]) -> EncoderStack:
        """Make a copy whose structs point to its own tensors."""
        layers, options = copy.deepcopy(self._given, memo), {"pre_norm": self._pre_norm, "epsilon": self._epsilon}
        return EncoderStack(self._functions, layers, heads=self._heads, **options)  # type: ignore[arg-type]

    def run(self, x: Tensor, lengths: Tensor, count: int, threads: int) -> Tensor:
        """x (B, S, D), contiguous -> (B, S, D) after the first ``count`` layers; zeros in the place of padding.

        Args:
            lengths: (B) int64, positions of each sentence, the others being padding on the right.
            threads: each computes its own sentences.
        """
        sentences, width, size = x.shape
        check(0 < count <= len(self._given), "a number of layers that there are")
        check(sentences > 0 and 0 <= int(lengths.min()) <= int(lengths.max()) <= width, "lengths within the batch")
        out = torch.empty_like(x)
        together = max(1, min(_TOGETHER, -(-int(lengths.sum()) // threads)))
        batch = _Batch(
            *(sentences, width, size, self._wide, self._heads, self._pre_norm, together, _BLOCK, self._epsilon),
            address(lengths, torch.int64, sentences),
            address(x, torch.float32, sentences, width, self._size),
            out.data_ptr(),
        )
        self._functions.run(ctypes.addressof(self._layers), count, ctypes.addressof(batch), threads)
        return out


def matrix_shapes(size: int, wide: int) -> dict[str, tuple[int, int]]:
    """The shapes of a layer's matrices by name."""
    return dict(zip(MATRICES, ((3 * size, size), (size, size), (wide, size), (size, wide)), strict=True))


def plain_layer(
    x: Tensor, product: Callable[[str, Tensor], Tensor], hidden: Tensor, heads: int, pre_norm: bool
) -> Tensor:
    """The reference: a layer in PyTorch, with norms of weight 1 and bias 0.

    Args:
        x: (B, S, D).
        product: returns the product of the matrix of this name and rows.
        hidden: (B, 1, 1, S), minus infinity at padding, otherwise 0.
    """
    size = x.shape[-1]

    def before(x: Tensor) -> Tensor:
        return F.layer_norm(x, (size,)) if pre_norm else x

    def after(x: Tensor) -> Tensor:
        return x if pre_norm else F.layer_norm(x, (size,))

    q, k, v = product("own", before(x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind()
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
    x = after(x + product("own_out", context.transpose(1, 2).flatten(2)))
    return after(x + product("outer", product("inner", before(x)).relu()))


def error(functions: EncoderFunctions, threads: int) -> float:
    """The largest deviation from PyTorch on small problems, relative to the tolerance."""
    return max(_error(functions, threads, pre_norm) for pre_norm in (True, False)) / _TOLERANCE


def _error(functions: EncoderFunctions, threads: int, pre_norm: bool) -> float:
    size, wide, heads, count, width = 64, 96, 2, 2, 70
    weights = [
        {name: numbers(*shape, speed=1.1 + 0.2 * i + t) / 8 for i, (name, shape) in enumerate(shapes.items())}
        for t in range(count)
        for shapes in (matrix_shapes(size, wide),)
    ]
    norm = NormWeights(torch.ones(size), torch.zeros(size))
    layers = [
        PackedEncoderLayer(tuple(pack(each, None, torch.float32) for each in own.values()), (norm, norm))
        for own in weights
    ]
    stack = EncoderStack(functions, layers, heads=heads, pre_norm=pre_norm, epsilon=1e-5)
    lengths = torch.tensor([70, 1, 33, 60, 15, 2])
    x = numbers(len(lengths), width, size, speed=0.6)
    padding = torch.arange(width) >= lengths[:, None]
    hidden = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)[:, None, None]
    found, expected = stack.run(x, lengths, count, threads), x
    for own in weights:
        expected = plain_layer(expected, plain_product(own), hidden, heads, pre_norm)
    return distance(found, expected.masked_fill(padding[:, :, None], 0.0))
