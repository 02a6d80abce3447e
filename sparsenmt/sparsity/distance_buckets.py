"""Biases of distances in buckets: the score of query i and key j is (q_i . k_j + b_(bucket of i-j)) / sqrt(E).

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (T5), section
2.1: half of the buckets have one distance each, the others lengths that grow with the logarithm of the distance. Their
scores are not divided by sqrt(E), which is the same with weights that are as much larger.
Shapes: B rows, H heads, Q queries, N distances, E head size, C buckets.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from sparsenmt.model.sockets import ScoreTerm
from sparsenmt.sparsity.patterns import check_self_attention
from sparsenmt.sparsity.registry import MethodPlace, Options, register

NAME = "distance_buckets"


class DistanceBucketOptions(Options):
    buckets: int = Field(32, ge=4, le=2**16, description="Number of buckets; in an encoder half of them for each side.")
    maximum: int = Field(128, ge=2, le=2**20, description="Distance from which on all keys share the last bucket.")
    tie: Literal["layer", "site"] = Field(
        "site", description="`site`: all layers of a site share the biases; `layer`: each layer has its own."
    )

    @model_validator(mode="after")
    def _check_maximum(self) -> DistanceBucketOptions:
        if self.maximum <= self.buckets // 2:
            raise ValueError(f"maximum must be more than half of the buckets, {self.buckets // 2}")
        return self


def bucket_of(distances: Tensor, buckets: int, maximum: int, *, causal: bool) -> Tensor:
    """distances (N) int64, positive to the left -> (N): their buckets; on both sides unless ``causal``.

    In fp32 and in this order of operations, as in the implementations of T5: bounds of buckets depend on rounding.
    """
    first = torch.zeros_like(distances)
    if causal:
        distances = distances.clamp_min(0)
    else:
        buckets //= 2
        first, distances = (distances < 0).long() * buckets, distances.abs()
    exact = buckets // 2
    ratio = torch.log(distances.float() / exact) / math.log(maximum / exact)
    far = exact + (ratio.clamp_min(0) * (buckets - exact)).long()
    return first + torch.where(distances < exact, distances, far.clamp_max(buckets - 1))


class DistanceBuckets(ScoreTerm):
    """A bias for each head and bucket.

    Args:
        causal: keys are not after their queries.
        owner: the term whose biases this one shares; None: it has its own, N(0, ``deviation``).
    """

    def __init__(
        self,
        options: DistanceBucketOptions,
        heads: int,
        *,
        causal: bool,
        deviation: float,
        owner: DistanceBuckets | None = None,
    ) -> None:
        super().__init__()
        self._buckets, self._maximum, self._causal = options.buckets, options.maximum, causal
        self._owner = None if owner is None else (owner,)  # in a tuple it is no submodule: a weight has one name
        if owner is None:
            self.weight = nn.Parameter(torch.randn(options.buckets, heads) * deviation)

    def forward(self, q: Tensor, distances: Tensor) -> Tensor:
        weight = self.weight if self._owner is None else self._owner[0].weight
        found = bucket_of(distances, self._buckets, self._maximum, causal=self._causal)
        biases = weight.index_select(0, found).t().to(q.dtype)  # (H, N)
        return biases[None, :, None, :].expand(len(q), -1, q.shape[2], -1)


@register(
    "position",
    NAME,
    options=DistanceBucketOptions,
    examples=({}, {"buckets": 8, "maximum": 6}, {"buckets": 4, "maximum": 3, "tie": "layer"}),
    refuses=("cross",),
)
def build(
    options: DistanceBucketOptions, *, site: str, heads: int, size: int, dimension: int, place: MethodPlace
) -> DistanceBuckets:
    check_self_attention(site)
    owner = place.shared.get((NAME, site)) if options.tie == "site" else None
    deviation = (size / dimension) ** 0.5  # theirs is dimension^-0.5, of scores that are not divided by size^0.5
    made = DistanceBuckets(options, heads, causal=site == "decoder_self", deviation=deviation, owner=owner)
    place.shared.setdefault((NAME, site), made)
    return made
