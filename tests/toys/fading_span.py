"""A span that fades linearly and that every head has learned: a query sees keys at most six positions away."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsenmt.model.sockets import Span
from sparsenmt.sparsity.registry import Options, register

REACH = 6


class FadingSpan(Span):
    """1 at the query, rate_h less at every position, 0 beyond the reach."""

    on = "weights"
    reach = REACH

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.linspace(0.02, 0.1, heads))

    def forward(self, distances: Tensor) -> Tensor:
        # The kit adds noise to parameters: below 0 all factors would be cut to 1, without a gradient.
        factors = 1 - self.rates.abs()[:, None, None] * distances
        return factors.clamp(0.01, 1.0).masked_fill(distances > REACH, 0.0)


@register("span", "toy_fading", refuses=("cross",))
def build(options: Options, *, site: str, heads: int) -> FadingSpan:
    if site == "cross":
        raise ValueError("there are no distances")
    return FadingSpan(heads)
