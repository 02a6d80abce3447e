"""The one linear layer of the model, its activations, and the adapter that may be trained beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.model.dropout import dropout
from sparsenmt.model.operators import PYTORCH, Operators

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class Adapter(nn.Module):
    """``scale * up @ down`` of inputs; see `model.adapters`. down (R, in), up (out, R)."""

    operators: Operators = PYTORCH

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
        x = dropout(x, self.dropout, self.operators.drop) if self.training else x
        return F.linear(F.linear(x, self.down), self.up) * self.scale


class Linear(nn.Linear):
    """``x @ weight.T + bias``. An adapter, while it is trained, adds to the output."""

    operators: Operators = PYTORCH

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.adapter: Adapter | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        output = self.operators.linear(input, self.weight, self.bias)
        return output if self.adapter is None else output + self.adapter(input)
