"""The one linear layer of the engine, and the packed products behind it (design rule 11).

oneDNN can reorder a weight once into the blocked layout of its kernels, instead of at every call. In bf16 and int8 a
compiled kernel multiplies rounded weights with inputs that it rounds itself (int8: a scale for each column of the
weights, a scale and an offset for each row of the input), so that all else stays in fp32. PyTorch's private operators
are used only if they agree with `F.linear` on a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.model.dropout import dropout
from sparsenmt.native.choice import AS_FAST
from sparsenmt.native.kernels import MOST_IN_ORDER, kernels, kernels_for
from sparsenmt.native.onednn import linear
from sparsenmt.native.packing import PackedMatrix, RowTable, has_whole_rows
from sparsenmt.native.token_lists import TokenLists

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]
_ONEDNN_NAMES = {
    **{"none": ("none", ""), "relu": ("relu", ""), "silu": ("swish", "")},
    **{"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")},
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_CLEARLY = 1.1
_TYPICAL_ROWS = 128  # of a decoding batch; packing for fewer rows would gain nothing

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Packing:
    """Options of packing weights for decoding.

    Args:
        dtype: the dtype that fp32 weights are rounded to, if `rounds` returns True; None: they are not rounded.
        final: release the unpacked weights, see `release_weights`.
        compiled: use the layout of the compiled kernels also in fp32, if there are such kernels.
    """

    dtype: torch.dtype | None = None
    final: bool = False
    compiled: bool = False

    def product(self, weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
        """Call `packed_product` with these options."""
        return packed_product(weight, bias, activation, dtype=self.dtype, compiled=self.compiled)


class Adapter(nn.Module):
    """``scale * up @ down`` of inputs; see `model.adapters`. down (R, in), up (out, R)."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        weight = layer.weight
        down = torch.empty(rank, layer.in_features, dtype=weight.dtype)
        bound = layer.in_features**-0.5
        self.down = nn.Parameter(down.uniform_(-bound, bound, generator=generator).to(weight.device))
        self.up = nn.Parameter(weight.new_zeros(layer.out_features, rank))
        self.scale = nn.Parameter(weight.new_tensor(scale), requires_grad=False)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        x = dropout(x, self.dropout) if self.training else x
        return F.linear(F.linear(x, self.down), self.up) * self.scale


class Linear(nn.Linear):
    """``x @ weight.T + bias``; packed for decoding on request. An adapter, while it is trained, adds to the output."""

    packed: Product | None = None

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.adapter: Adapter | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if self.packed is not None:
            return self.packed(input)
        output = linear(input, self.weight, self.bias)
        return output if self.adapter is None else output + self.adapter(input)

    def pack(self, how: Packing = Packing()) -> None:
        """Use a packed product from now on, if there is one."""
        self.packed = how.product(self.weight, self.bias)
        if how.final:
            release_weights(self)


def release_weights(*layers: Linear) -> None:
    """Free the unpacked weights of packed layers, which can then only be decoded with."""
    for layer in layers:
        layer.weight.data = layer.weight.data.new_empty(0)


def packed_product(
    weight: Tensor,
    bias: Tensor | None,
    activation: Activation = "none",
    *,
    dtype: torch.dtype | None = None,
    compiled: bool = False,
) -> Product:
    """Make a function ``x -> activation(x @ weight.T + bias)`` for inference, with the weight packed if possible.

    weight (out, in), bias (out).

    Args:
        dtype: the dtype that an fp32 weight is rounded to, if `rounds` returns True; None: it is not rounded.
        compiled: use the layout of the compiled kernels also in fp32, if there are such kernels.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    dtype = dtype or weight.dtype
    if dtype != weight.dtype or (compiled and dtype in compiled_dtypes(weight)):
        return CompiledProduct(weight, bias, dtype, activation)
    packed = _onednn_product(weight, bias, activation)
    return packed if packed is not None else _plain_product(weight, bias, activation)


def rounds(weight: Tensor, dtype: torch.dtype) -> bool:
    """Return True if there are products of this weight, rounded to bf16 or int8, with inputs in fp32."""
    return dtype != weight.dtype and dtype in compiled_dtypes(weight)


def compiled_dtypes(weight: Tensor) -> frozenset[torch.dtype]:
    """The dtypes that compiled kernels multiply this weight in, which differ from processor to processor."""
    found = kernels_for(weight) if weight.dtype == torch.float32 else None
    return frozenset() if found is None else found.layout.dtypes


LAST_LEVEL_CACHE_SIZE = 1 << 24
"""Bytes. Every core may read all of a smaller matrix."""


def continues(weight: Tensor) -> bool:
    """Return True if `CompiledProduct.continuations` with this output table, in fp32, is faster than its logits."""
    found = kernels_for(weight)
    if found is None or weight.dtype not in compiled_dtypes(weight):
        return False
    return found.faster("next tokens", torch.float32, *weight.shape)


def can_hold_table(weight: Tensor) -> bool:
    """Return True if an output table, in fp32, had better be in memory once, in the layout of the compiled products.

    It is if its product takes no longer than oneDNN's, and if it is large: looking up embeddings in it takes longer.
    """
    found = kernels_for(weight)
    large = weight.numel() * 4 > LAST_LEVEL_CACHE_SIZE
    if found is None or not large or weight.dtype not in compiled_dtypes(weight):
        return False
    return found.choice.ratio("packed product", torch.float32, *weight.shape) < AS_FAST


class CompiledProduct:
    """A product by the compiled kernels.

    Args:
        weight: (out, in).
        bias: (out).
        dtype: the dtype that the weight is rounded to.
        activation: of the result.

    Attributes:
        packed: the matrix, in the layout of the kernels, with its bias.
    """

    packed: PackedMatrix

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: Activation) -> None:
        found = kernels()
        if found is None:
            raise ValueError("there are no compiled kernels here")  # see `rounds`
        self.packed, self.activation = found.layout.pack(weight, bias, dtype), activation
        self._kernels = found

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        if self.activation in ("none", "relu"):
            return self._kernels.product(x, self.packed, relu=self.activation == "relu")
        return ACTIVATIONS[self.activation](self._kernels.product(x, self.packed))

    def continuations(
        self, x: Tensor, scores: Tensor, never: Sequence[int], width: int, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Implement `protocol.TranslationModel.continuations`, where this is the product with the output table."""
        if x.dtype != torch.float32 or width > min(self.packed.outer, MOST_IN_ORDER):
            return None
        if not self._kernels.faster("next tokens", self.packed.dtype, self.packed.outer, self.packed.inner):
            return None
        mask = None if mask is None else mask.contiguous()
        return self._kernels.next(x.contiguous(), self.packed, scores.contiguous(), never, width, mask)


class ListedProduct:
    """The product with the output table where every sentence has a list of tokens.

    Args:
        table: None: no kernel computes it here.
    """

    def __init__(self, table: RowTable | None) -> None:
        self._table = table

    @property
    def table(self) -> RowTable | None:
        """The table, if the kernel is faster than a product with gathered rows."""
        table = self._table
        found = None if table is None else kernels()
        if found is None or table is None or not found.faster("next listed tokens", table.rows.dtype, table.inner):
            return None
        return table

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None, rounded: torch.dtype | None) -> ListedProduct:
        """Make the product with a table (V, D) in its own dtype, or rounded."""
        dtype = rounded or weight.dtype
        found = kernels() if dtype in compiled_dtypes(weight) and has_whole_rows(weight, dtype) else None
        return ListedProduct(None if found is None else found.layout.row_table(weight, bias, dtype))

    def continuations(
        self, x: Tensor, lists: TokenLists, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Implement `protocol.TranslationModel.listed_continuations`."""
        found, table = kernels(), self.table
        if found is None or table is None or x.dtype != torch.float32 or width > MOST_IN_ORDER:
            return None
        return found.next_listed(x.contiguous(), table, lists, scores.contiguous(), never, width)


def _plain_product(weight: Tensor, bias: Tensor | None, activation: Activation) -> Product:
    apply = ACTIVATIONS[activation]
    return lambda x: apply(F.linear(x, weight, bias))


def _onednn_product(weight: Tensor, bias: Tensor | None, activation: Activation) -> Product | None:
    if weight.device.type != "cpu" or weight.dtype not in _TOLERANCE or not torch.backends.mkldnn.is_available():
        return None
    try:
        operators = torch.ops.mkldnn
        packed = operators._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
        product = operators._linear_pointwise
        name, algorithm = _ONEDNN_NAMES[activation]

        def run(x: Tensor) -> Tensor:
            result: Tensor = product(x, packed, bias, name, [], algorithm)
            return result

        probe = torch.linspace(-1, 1, 3 * weight.shape[1], dtype=weight.dtype).view(3, -1)
        expected = _plain_product(weight, bias, activation)(probe).float()
        error = (run(probe).float() - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
        return run if float(error) <= _TOLERANCE[weight.dtype] else None
    except (AttributeError, RuntimeError):  # the private operator has changed or is not built in
        return None


def fastest(weight: Tensor, dtypes: Collection[torch.dtype]) -> torch.dtype:
    """The dtype whose product with such a weight is fastest, or fp32 unless another is clearly faster."""
    found = kernels()
    if found is None or not dtypes:
        return torch.float32
    ratios = {dtype: found.choice.ratio("product", dtype, *weight.shape) for dtype in dtypes}
    best = min(ratios, key=lambda dtype: ratios[dtype])
    return best if ratios[best] * _CLEARLY < 1 else torch.float32
