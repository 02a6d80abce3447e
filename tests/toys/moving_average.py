"""A recurrent cell with a parameter: a moving average of the input's projection, with a learned share of the new."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsenmt.model.sockets import Recurrence
from sparsenmt.sparsity.registry import Options, register


class MovingAverage(Recurrence):
    projections = {"input": True}

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.linspace(0.2, 0.8, dimension))

    def forward(self, projected: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, Tensor]:
        (x,) = projected
        share, states = self.share, []
        after = torch.zeros_like(share).expand(x.shape[0], -1) if state is None else state
        for new in x.unbind(1):
            after = after + share * (new.to(share.dtype) - after)
            states.append(after)
        return torch.stack(states, 1).to(x.dtype), after


@register("recurrence", "toy_average")
def build(options: Options, *, dimension: int) -> MovingAverage:
    return MovingAverage(dimension)
