"""The simpler simple recurrent unit (SSRU) in the place of the decoder's self-attention.

Kim, Junczys-Dowmunt, Hassan, Fikri Aji, Heafield, Grundkiewicz and Bogoychev 2019, "From Research to Production and
Back: Ludicrously Fast Neural Machine Translation", section 3.1: f_t = sigmoid(W_f x_t + b_f),
c_t = f_t * c_(t-1) + (1 - f_t) * W x_t, and the output is ReLU(c_t). The state c is all that a decoder keeps of the
positions before, however long the target is.

Over a whole target this is a linear recurrence: its composition is associative, so that all positions are computed in
log2(T) steps, and the gradient is the same recurrence from the end to the beginning.
Shapes: N rows, T positions, D model dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.sockets import Recurrence
from sparsenmt.sparsity.registry import Options, register


def _scan(factors: Tensor, terms: Tensor) -> Tensor:
    """The states h_t = factors_t * h_(t-1) + terms_t with h_(-1) = 0, by doubling. All are (N, T, D)."""
    length, span = terms.shape[1], 1
    while span < length:  # each state comprises the last ``span`` terms
        terms = torch.cat([terms[:, :span], terms[:, span:] + factors[:, span:] * terms[:, :-span]], 1)
        if 2 * span < length:
            factors = torch.cat([factors[:, :span], factors[:, span:] * factors[:, :-span]], 1)
        span *= 2
    return terms


class _LinearRecurrence(torch.autograd.Function):
    """`_scan` with its gradient, which keeps the states only, not those of the doubling."""

    @staticmethod
    def forward(ctx: Any, factors: Tensor, terms: Tensor) -> Tensor:
        states = _scan(factors, terms)
        ctx.save_for_backward(factors, states)
        return states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        factors, states = ctx.saved_tensors
        later = F.pad(factors[:, 1:], (0, 0, 0, 1))  # a state's factor in the next one
        of_terms = _scan(later.flip(1), gradients[0].flip(1)).flip(1)
        return of_terms * F.pad(states[:, :-1], (0, 0, 1, 0)), of_terms


class SSRU(Recurrence):
    """The cell."""

    projections = {"candidate": False, "forget": True}
    compiled = True

    def forward(self, projected: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, Tensor]:
        candidate, forget = projected
        exact = torch.promote_types(candidate.dtype, torch.float32)
        factors = torch.sigmoid(forget.to(exact))
        terms = (1 - factors) * candidate.to(exact)
        if state is not None:
            first = terms[:, :1] + factors[:, :1] * state.to(exact)[:, None]
            terms = torch.cat([first, terms[:, 1:]], 1) if terms.shape[1] > 1 else first
        states = terms
        if terms.shape[1] > 1:
            states = _LinearRecurrence.apply(factors, terms)  # type: ignore[no-untyped-call]
        return states.relu().to(candidate.dtype), states[:, -1]


@register("recurrence", "ssru")
def build(options: Options, *, dimension: int) -> SSRU:
    return SSRU()
