"""The compiled encoder: a batch through all layers in one call, without its padding.

Shapes: B sentences, S positions of the longest, D dimension, F feed-forward dimension, H heads, E head size.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.native.address import address, check
from sparsenmt.native.packing import PackedMatrixStruct, fields
from sparsenmt.native.steps import LayerWeights, NormStruct, PackedStack

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
MATRICES = ("own", "own_out", "inner", "outer")
_TOGETHER = 126  # positions that a thread takes through all layers at a time: nine tiles
_BLOCK = 42  # positions of them in the feed-forward network: three tiles, whose F numbers each stay in the cache


class _EncoderLayer(ctypes.Structure):
    """The C struct of `PackedEncoderLayer`."""

    _fields_ = (
        *fields(PackedMatrixStruct, *MATRICES),
        *fields(NormStruct, "own_norm", "feed_forward_norm"),
    )


class _Batch(ctypes.Structure):
    """The C struct of a batch: its sizes (width is S), options, and the addresses of lengths, states and results."""

    _fields_ = (
        *fields(_SIZE, "sentences", "width", "dimension", "feed_forward", "heads", "pre_norm", "together", "block"),
        ("epsilon", ctypes.c_double),
        *fields(_POINTER, "lengths", "x", "out"),
    )


@dataclass(frozen=True)
class PackedEncoderLayer(LayerWeights):
    """The parameters of an encoder layer.

    Args:
        matrices: self-attention's queries, keys and values in one; its output; the two of the feed-forward network,
            with a ReLU after the first.
        norms: of self-attention and the feed-forward network.
    """

    def structure(self, size: int, wide: int) -> _EncoderLayer:
        """Make the C struct, for D = ``size`` and F = ``wide``; valid as long as this object."""
        self.check_shapes(size, wide, cross=False)
        return _EncoderLayer(*(each.struct for each in self.matrices), *(each.pointers(size) for each in self.norms))


class EncoderStack(PackedStack[PackedEncoderLayer]):
    """The layers of an encoder, without a normalisation after the last one."""

    @property
    def sizes(self) -> tuple[torch.dtype, int, int, int]:
        """The dtype of the products, the model and the feed-forward dimension, the heads."""
        return self._given[0].matrices[-1].dtype, self._size, self._wide, self._heads

    def run(self, x: Tensor, lengths: Tensor, count: int, threads: int) -> Tensor:
        """x (B, S, D), contiguous -> (B, S, D) after the first ``count`` layers; zeros in the place of padding.

        Args:
            lengths: (B) int64, positions of each sentence, the others being padding on the right.
            threads: at most; each takes a few sentences at a time.
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
        self.functions.encode(ctypes.addressof(self._layers), count, ctypes.addressof(batch), threads)
        return out
