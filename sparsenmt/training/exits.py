"""The exits that an update trains, and their shares of its loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from sparsenmt.model.depth_plan import DepthPlan

ExitPairs = Mapping[tuple[int, int], float]
"""(encoder exit, decoder exit) -> share of the loss."""


def sample_exit_pairs(plan: DepthPlan, seed: Sequence[int]) -> ExitPairs:
    """Sample the pairs of exits of an update, with their shares of its loss.

    If the plan samples exits, all exits of a side are equally likely, and the shares are scaled up so that the
    expected gradient is the gradient of all pairs.

    Args:
        seed: the run's seed and the number of the update: a resumed run, and every process of a run, samples the same.
    """
    pairs = plan.pairs()
    if plan.drawn == (None, None):
        return pairs
    generator = np.random.default_rng(list(seed))
    sides, factor = [], 1.0
    for exits, count in zip((plan.encoder_exits, plan.decoder_exits), plan.drawn, strict=True):
        sides.append({int(n) for n in generator.choice(exits, count or len(exits), replace=False)})
        factor *= len(exits) / len(sides[-1])
    return {(n, m): share * factor for (n, m), share in pairs.items() if n in sides[0] and m in sides[1]}


def fill_missing_gradients(plan: DepthPlan, parameters: Iterable[nn.Parameter]) -> None:
    """If exits are sampled, give a zero gradient to parameters that no sampled exit used.

    So their moments decay as with several processes, where summing the gradients creates zeros.
    """
    if plan.drawn == (None, None):
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
