"""Products of packed weights for inference.

oneDNN can reorder a weight once into the blocked layout of its kernels, instead of at every call. In bf16 and int8 a
compiled kernel multiplies rounded weights with inputs that it rounds itself (int8: a scale for each column of the
weights, a scale and an offset for each row of the input), so that all else stays in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.linear import ACTIVATIONS, Activation
from sparsenmt.native.choice import AS_FAST
from sparsenmt.native.kernels import Kernels, kernels, kernels_for
from sparsenmt.native.onednn import multiply, reorder, works
from sparsenmt.native.packing import PackedMatrix

_CLEARLY = 1.1  # times faster, at least: another dtype costs precision
_TYPICAL_ROWS = 128  # of a decoding batch; packing for fewer rows would gain nothing
LAST_LEVEL_CACHE_SIZE = 1 << 24
"""Bytes. Every core may read all of a smaller matrix."""

Product = Callable[[Tensor], Tensor]
"""The product with a weight that it holds, plus its bias, and an activation: (..., in) -> (..., out)."""


class CompiledProduct:
    """The product ``activation(x @ weight.T + bias)`` by the compiled kernels.

    Args:
        weight: (out, in).
        bias: (out).
        dtype: the dtype that the weight is rounded to.
        activation: of the result.
        output: it is the output table of a model.

    Attributes:
        packed: the matrix, in the layout of the kernels, with its bias.
        shares_bits: True if two neighbours share 16 bits in int8, so that steps are up to twice as large.
        continues: True for an output table if `Kernels.next` is faster than logits and `candidates`.
    """

    def __init__(
        self,
        found: Kernels,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        activation: Activation = "none",
        *,
        output: bool = False,
    ) -> None:
        self.packed: PackedMatrix = found.layout.pack(weight, bias, dtype)
        self.activation, self._kernels = activation, found
        self.shares_bits = found.layout.most_of_pair > 0
        self.continues = output and found.faster("next tokens", dtype, *weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        if self.activation in ("none", "relu"):
            return self._kernels.product(x, self.packed, relu=self.activation == "relu")
        return ACTIVATIONS[self.activation](self._kernels.product(x, self.packed))


def packed_product(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
    """Make a function ``x -> activation(x @ weight.T + bias)`` with the weight in oneDNN's layout, if there is one."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if weight.device.type == "cpu" and works(weight.dtype):
        return partial(multiply, packed=reorder(weight.contiguous(), _TYPICAL_ROWS), bias=bias, activation=activation)
    return partial(_plain, ACTIVATIONS[activation], weight, bias)


def _plain(activate: Product, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """``activate(x @ weight.T + bias)`` by PyTorch: x (..., in) -> (..., out)."""
    return activate(F.linear(x, weight, bias))


def rounds(weight: Tensor, dtype: torch.dtype) -> bool:
    """Return True if this processor has products of the weight, rounded to bf16 or int8, with inputs in fp32."""
    found = kernels_for(weight) if weight.dtype == torch.float32 else None
    return found is not None and dtype != weight.dtype and dtype in found.layout.dtypes


def rounded_product(weight: Tensor, dtype: torch.dtype) -> CompiledProduct | None:
    """Return the compiled product of a weight (out, in) that is rounded to a dtype; None if there is none."""
    found = kernels_for(weight) if rounds(weight, dtype) else None
    return None if found is None else CompiledProduct(found, weight, None, dtype)


def can_hold_table(found: Kernels, weight: Tensor) -> bool:
    """Return True if an output table (V, D) in fp32, which also embeds, is kept in the kernels' layout alone.

    That takes half of the memory, but embeddings are looked up more slowly: so only if it is large, and if its product
    takes no longer than oneDNN's.
    """
    large = weight.numel() * 4 > LAST_LEVEL_CACHE_SIZE
    return large and found.choice.ratio("packed product", torch.float32, *weight.shape) < AS_FAST


def fastest(weight: Tensor, dtypes: Collection[torch.dtype]) -> torch.dtype:
    """The dtype whose product with such a weight is fastest, or fp32 unless another is clearly faster."""
    found = kernels()
    if found is None or not dtypes:
        return torch.float32
    ratios = {dtype: found.choice.ratio("product", dtype, *weight.shape) for dtype in dtypes}
    best = min(ratios, key=lambda dtype: ratios[dtype])
    return best if ratios[best] * _CLEARLY < 1 else torch.float32
