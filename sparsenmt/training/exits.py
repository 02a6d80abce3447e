"""Which exits an update trains, and with which share of the loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from sparsenmt.model.depth_plan import DepthPlan

Pairs = Mapping[tuple[int, int], float]
"""(encoder exit, decoder exit) -> share of the loss."""


def draw_pairs(plan: DepthPlan, place: Sequence[int]) -> Pairs:
    """The pairs of exits of an update, and their shares of its loss.

    Where the plan draws exits, each of a side is as likely as the others, and the shares are raised by what is left
    out, so that the expectation of the gradient is the gradient of all pairs.

    Args:
        place: the seed, and the number of the update. They fix what is drawn: a run that is resumed draws what it would
            have drawn, and all processes of a run draw the same, however many they are.
    """
    pairs = plan.pairs()
    if plan.drawn == (None, None):
        return pairs
    generator = np.random.default_rng(list(place))
    sides, factor = [], 1.0
    for exits, count in zip((plan.encoder_exits, plan.decoder_exits), plan.drawn, strict=True):
        sides.append({int(n) for n in generator.choice(exits, count or len(exits), replace=False)})
        factor *= len(exits) / len(sides[-1])
    return {(n, m): share * factor for (n, m), share in pairs.items() if n in sides[0] and m in sides[1]}


def complete_gradients(plan: DepthPlan, parameters: Iterable[nn.Parameter]) -> None:
    """Where exits are drawn, give a gradient of 0 to what no drawn exit has used: its moments move on as they do in
    updates of several processes, which sum their gradients."""
    if plan.drawn == (None, None):
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
