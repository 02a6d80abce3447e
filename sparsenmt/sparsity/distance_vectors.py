"""Learned vectors for distances: the score of query i and key j is q_i . (k_j + p_(i-j)).

Shaw, Uszkoreit and Vaswani 2018, "Self-Attention with Relative Position Representations"; with the heads of a layer
sharing the vectors, the positions of Sukhbaatar, Grave, Bojanowski and Joulin 2019, "Adaptive Attention Span in
Transformers", section 2.
Shapes: B rows, H heads, Q queries, N distances, E head size.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsenmt.model.sockets import ScoreTerm
from sparsenmt.sparsity.patterns import check_self_attention
from sparsenmt.sparsity.registry import MethodPlace, Options, register

NAME = "distance_vectors"


class DistanceVectorOptions(Options):
    maximum: int = Field(
        1024, ge=1, le=2**20, description="Number of distances with vectors of their own; farther keys share the last."
    )
    tie: Literal["layer", "site"] = Field(
        "layer", description="`layer`: each layer has vectors of its own; `site`: all layers of a site share them."
    )
    deviation: float | None = Field(
        None, gt=0, le=10, description="Standard deviation of the initial vectors. Default: head size^-0.5."
    )

    younger = frozenset({"deviation"})


class DistanceVectors(ScoreTerm):
    """A vector for each distance, shared by the heads; on both sides if later keys are visible.

    Args:
        maximum: distances 0 to maximum - 1 have vectors of their own.
        causal: keys are not after their queries.
        owner: the term whose vectors this one shares; None: it has its own.
        deviation: standard deviation of the initial vectors; None: size^-0.5.
    """

    def __init__(
        self,
        maximum: int,
        size: int,
        *,
        causal: bool,
        owner: DistanceVectors | None = None,
        deviation: float | None = None,
    ) -> None:
        super().__init__()
        self._before = 0 if causal else maximum - 1
        self._last = maximum - 1
        self._owner = None if owner is None else (owner,)  # in a tuple it is no submodule: a weight has one name
        if owner is None:
            self.weight = nn.Parameter(torch.randn(self._before + maximum, size) * (deviation or size**-0.5))

    def forward(self, q: Tensor, distances: Tensor) -> Tensor:
        rows = distances.clamp(-self._before, self._last) + self._before
        weight = self.weight if self._owner is None else self._owner[0].weight
        return q @ weight.index_select(0, rows).to(q.dtype).t()


@register(
    "position",
    NAME,
    options=DistanceVectorOptions,
    examples=({"maximum": 16}, {"maximum": 3, "tie": "site"}),
    refuses=("cross",),
)
def build(
    options: DistanceVectorOptions, *, site: str, heads: int, size: int, dimension: int, place: MethodPlace
) -> DistanceVectors:
    check_self_attention(site)
    causal, owner = site == "decoder_self", None
    if options.tie == "site":
        owner = place.shared.get((NAME, site))
    made = DistanceVectors(options.maximum, size, causal=causal, owner=owner, deviation=options.deviation)
    place.shared.setdefault((NAME, site), made)
    return made
