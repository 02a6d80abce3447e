"""Gates that come with the source: each position is dropped or kept by a coin, the same in every run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter


class Coins(MemoryFilter):
    """Opens what the source's feature ``kept`` says."""

    requires = frozenset({"kept"})
    position_dependent = True

    def forward(self, memory: Memory) -> Gates:
        return Gates(memory.features["kept"].to(memory.states.dtype))


def coins(sentences: int, length: int, dropped: float) -> Tensor:
    """(B, S) bool: what is kept, where a share of ``dropped`` goes."""
    return torch.from_numpy(np.random.default_rng(1).random((sentences, length)) >= dropped)
