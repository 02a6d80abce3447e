"""A memory filter that reads a source feature, so that `prepare` writes files of features too."""

from __future__ import annotations

import torch
from torch import nn

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.sparsity.registry import Options, register

FEATURE = "frequency_rank"


class RankFilter(MemoryFilter):
    """One learned gate for frequent words, 1 for all others."""

    requires = (FEATURE,)
    position_dependent = True

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(2.0))

    def forward(self, memory: Memory) -> Gates:
        ranks = memory.features[FEATURE].gather(1, memory.positions)
        gate = torch.sigmoid(self.bias).expand(ranks.shape)
        return Gates(torch.where(ranks < 10, gate, torch.ones_like(gate)), "zero", {})


@register("memory", "faults_rank", requires=frozenset({FEATURE}))
def build(options: Options, *, dimension: int) -> RankFilter:
    return RankFilter()
