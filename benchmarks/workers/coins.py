"""Gates that are features of the source: each position is dropped at random, the same in every run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter


class Coins(MemoryFilter):
    """Opens the gates of the positions that the feature ``kept`` names."""

    requires = frozenset({"kept"})
    position_dependent = True

    def forward(self, memory: Memory) -> Gates:
        return Gates(memory.features["kept"].to(memory.states.dtype))


def coins(sentences: int, length: int, dropped: float) -> Tensor:
    """Return (B, S) bool: True for positions that are kept; a share of ``dropped`` is not."""
    return torch.from_numpy(np.random.default_rng(1).random((sentences, length)) >= dropped)
