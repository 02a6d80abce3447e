"""The one linear layer of the engine, and the packed products behind it (design rule 11).

oneDNN can reorder a weight once into the blocked layout that its kernels want; products then skip that step at every
call. In bf16 and int8 a compiled kernel multiplies rounded weights with inputs that it rounds itself (int8: a scale for
each column of the weights, a scale and an offset for each row of the input), so that all else stays in fp32. Operators
that are private to PyTorch, or not built here, are used only after they agreed with `F.linear`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.native.kernels import MOST_IN_ORDER, kernels
from sparsenmt.native.packing import Packed, pack

Activation = Literal["none", "relu", "gelu", "silu"]
_ONEDNN_NAMES = {"none": "none", "relu": "relu", "gelu": "gelu", "silu": "swish"}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_TRIES, _CLEARLY = 25, 1.1
# Products with few rows gain nothing from a packed weight tuned for them; this is a typical decoding batch.
_TYPICAL_ROWS = 128

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Packing:
    """How weights are packed for decoding.

    Args:
        dtype: what fp32 weights are rounded to, if `rounds` says that they can be; None: they stay as they are.
        final: give up what was packed, as `give_up` says.
        compiled: in the layout of the compiled kernels also in fp32, where there are such kernels.
    """

    dtype: torch.dtype | None = None
    final: bool = False
    compiled: bool = False

    def product(self, weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
        """As `packed_product`."""
        return packed_product(weight, bias, activation, dtype=self.dtype, compiled=self.compiled)


class Linear(nn.Linear):
    """``x @ weight.T + bias``; packed for decoding on request."""

    packed: Product | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if self.packed is not None:
            return self.packed(input)
        return F.linear(input, self.weight, self.bias)

    def pack(self, how: Packing = Packing()) -> None:
        """Use a packed product from now on, where one is to be had."""
        self.packed = how.product(self.weight, self.bias)
        if how.final:
            give_up(self)


def give_up(*layers: Linear) -> None:
    """Free the weights of layers whose products are packed: nothing else can be done with these layers any more."""
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
    """A function ``x -> activation(x @ weight.T + bias)``, with the weight packed if that is possible and right.

    weight (out, in), bias (out). The result is for inference only.

    Args:
        dtype: what an fp32 weight is rounded to, if `rounds` says that it can be; None: it stays as it is.
        compiled: in the layout of the compiled kernels also in fp32, where there are such kernels.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    dtype = dtype or weight.dtype
    if dtype != weight.dtype or (compiled and rounds(weight, torch.bfloat16)):
        return CompiledProduct(pack(weight, bias, dtype), activation)
    packed = _onednn_product(weight, bias, activation)
    return packed if packed is not None else _plain_product(weight, bias, activation)


def rounds(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether there are products with a weight that is rounded to bf16 or int8, for inputs in fp32."""
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or dtype not in (torch.bfloat16, torch.int8):
        return False
    found = kernels()
    return found is not None and found.has_products


NEAR = 1 << 24
"""Bytes of a matrix that a processor's last cache holds: all cores may read all of it, for a few rows at a time."""

_FEW_ROWS = 32  # for which each core reads a part of the matrix, once


class CompiledProduct:
    """A product by the compiled kernels.

    Args:
        packed: the matrix, in the layout of the kernels, with its bias.
        activation: of the result.
    """

    def __init__(self, packed: Packed, activation: Activation) -> None:
        found = kernels()
        assert found is not None  # as `rounds` says
        self.packed, self.activation = packed, activation
        self._product, self._next = found.product, found.next

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        if self.activation in ("none", "relu"):
            return self._product(x, self.packed, relu=self.activation == "relu")
        return ACTIVATIONS[self.activation](self._product(x, self.packed))

    def continuations(
        self, x: Tensor, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """As `interfaces.TranslationModel.continuations`, where this multiplies with the output table."""
        if x.dtype != torch.float32 or width > min(self.packed.outer, MOST_IN_ORDER):
            return None
        if self.packed.panels.nbytes > NEAR and x.shape[0] > _FEW_ROWS:
            return None
        return self._next(x.contiguous(), self.packed, scores.contiguous(), never, width)


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
        name = _ONEDNN_NAMES[activation]

        def run(x: Tensor) -> Tensor:
            result: Tensor = product(x, packed, bias, name, [], "none" if name == "gelu" else "")
            return result

        probe = torch.linspace(-1, 1, 3 * weight.shape[1], dtype=weight.dtype).view(3, -1)
        expected = _plain_product(weight, bias, activation)(probe).float()
        error = (run(probe).float() - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
        return run if float(error) <= _TOLERANCE[weight.dtype] else None
    except (AttributeError, RuntimeError):  # the private operator changed or is not built in: plain products are right
        return None


def fastest(weight: Tensor, dtypes: Collection[torch.dtype]) -> torch.dtype:
    """The dtype whose products with this weight are the fastest here and now; fp32 unless another is clearly faster."""
    x = torch.ones(_TYPICAL_ROWS, weight.shape[1])
    products = {dtype: packed_product(weight, None, dtype=dtype) for dtype in (torch.float32, *dtypes)}
    seconds = dict.fromkeys(products, math.inf)
    with torch.inference_mode():
        for _ in range(_TRIES):
            for dtype, product in products.items():  # in turns: what disturbs one disturbs the others
                start = time.perf_counter()
                product(x)
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - start)
    best = min(seconds, key=lambda dtype: seconds[dtype])
    return best if seconds[best] * _CLEARLY < seconds[torch.float32] else torch.float32
