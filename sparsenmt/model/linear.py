"""The one linear layer of the engine, and the packed products behind it (design rule 11).

oneDNN can reorder a weight once into the blocked layout that its kernels want; products then skip that step at every
call. The operators are private to PyTorch, so a packed product is used only after it agreed with `F.linear`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["none", "relu", "gelu", "silu"]
_ONEDNN_NAMES = {"none": "none", "relu": "relu", "gelu": "gelu", "silu": "swish"}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
# Products with few rows gain nothing from a packed weight tuned for them; this is a typical decoding batch.
_TYPICAL_ROWS = 128

Product = Callable[[Tensor], Tensor]


class Linear(nn.Linear):
    """``x @ weight.T + bias``; packed for decoding on request."""

    _packed: Product | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if self._packed is not None:
            return self._packed(input)
        return F.linear(input, self.weight, self.bias)

    def pack(self) -> None:
        """Use a packed product from now on, where one is to be had."""
        self._packed = packed_product(self.weight, self.bias)


def packed_product(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
    """A function ``x -> activation(x @ weight.T + bias)``, with the weight packed if that is possible and right.

    weight (out, in), bias (out). The result is for inference only.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    packed = _onednn_product(weight, bias, activation)
    return packed if packed is not None else _plain_product(weight, bias, activation)


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
