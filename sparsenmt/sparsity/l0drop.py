"""L0Drop: a learned gate for every encoder output (Zhang, Titov and Sennrich 2021, "On Sparsifying Encoder Outputs in
Sequence-to-Sequence Models", Findings of ACL).

Gates are hard concrete (Louizos et al. 2018): ``log alpha = w . x + b`` of the state x; in training a stretched and
clipped sample, in evaluation its deterministic form. The penalty is the expected share of open gates.

Shapes: B sentences, S' entries of a memory, D model dimension.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.sparsity.registry import Options, register

LOSS = "l0"
BETA = 2 / 3  # temperature of the concrete distribution
EPSILON = 0.1  # stretch beyond 0 and 1; the paper's appendix prints -0.1, but Eq. 7 needs a positive number
_EDGE = 1e-6  # distance of uniform samples from 0 and 1, whose logits are infinite


class L0DropOptions(Options):
    init_log_alpha: float = Field(
        0.0,
        allow_inf_nan=False,
        description="Initial bias of log alpha. 0, as published, starts with every gate at 0.5 in evaluation; "
        "2.4 starts with open gates.",
    )
    closed: Literal["zero", "mask"] = Field(
        "zero", description="What replaces a closed position: a zero vector (the paper), or nothing (masked)."
    )
    cumulative: bool = Field(
        False, description="Between encoder layers: positions that one filter closes stay closed in later ones."
    )


class L0Drop(MemoryFilter):
    """A gate for each source position, computed from its state.

    ``</s>`` is gated and counted like any token, and there is a bias b, which the paper does not write: both as in the
    authors' code.
    """

    start_option = "init_log_alpha"

    def __init__(self, options: L0DropOptions, dimension: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dimension))
        self.bias = nn.Parameter(torch.tensor(options.init_log_alpha))
        bound = math.sqrt(6 / (dimension + 1))  # Glorot, for a (D, 1) matrix
        nn.init.uniform_(self.weight, -bound, bound)
        self.closed: Literal["zero", "mask"] = options.closed
        self.cumulative = options.cumulative

    def forward(self, memory: Memory) -> Gates:
        log_alpha = memory.states.to(self.weight.dtype) @ self.weight + self.bias
        test = test_gate(log_alpha)
        values = sample_gate(log_alpha) if self.training else test
        opened = p_open(log_alpha)
        if self.cumulative or memory.gated:  # what is closed for good is not open with any probability
            opened = opened.masked_fill(~memory.open_entries(), 0)
        penalty = memory.source_mean(opened)
        return Gates(values, self.closed, {LOSS: penalty}, evaluated=test, cumulative=self.cumulative)


def sample_gate(log_alpha: Tensor) -> Tensor:
    """A sample of the gate's training distribution (Eqs. 6-8), differentiable in ``log_alpha``."""
    uniform = torch.rand_like(log_alpha).clamp(_EDGE, 1 - _EDGE)
    noise = torch.logit(uniform)
    return stretch(torch.sigmoid((log_alpha + noise) / BETA))


def test_gate(log_alpha: Tensor) -> Tensor:
    """The gate in evaluation (Eq. 13): 0 exactly up to log alpha = -2.398, 1 exactly from 2.398 on."""
    return stretch(torch.sigmoid(log_alpha))


def stretch(values: Tensor) -> Tensor:
    """(0, 1) to (-epsilon, 1 + epsilon), clipped to [0, 1] (Eq. 7, 8)."""
    return (values * (1 + 2 * EPSILON) - EPSILON).clamp(0, 1)


def p_open(log_alpha: Tensor) -> Tensor:
    """The probability that a sampled gate is not 0 (Eq. 10)."""
    return torch.sigmoid(log_alpha - BETA * math.log(EPSILON / (1 + EPSILON)))


@register(
    "memory",
    "l0drop",
    options=L0DropOptions,
    examples=({"init_log_alpha": -1.5}, {"init_log_alpha": -1.5, "closed": "mask"}, {"cumulative": True}),
)
def build(options: L0DropOptions, *, dimension: int) -> L0Drop:
    return L0Drop(options, dimension)
