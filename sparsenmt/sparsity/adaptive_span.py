"""Adaptive attention span: every head learns how far back it attends.

Sukhbaatar, Grave, Bojanowski and Joulin 2019, "Adaptive Attention Span in Transformers", section 2. With a span
z = s S of the largest span S and a ramp R, a key at distance x has the factor m(x) = clamp((R + z - x) / R, 0, 1) of
Eq. 2, and the weights are m(x) exp(score), normalised (Eq. 3). The loss is S times the mean of s over the heads, summed
over the layers; training clamps s to [0, 1].
Shapes: H heads, Q queries, K keys.

The authors' code leaves out the query's own position, and counts x from the one before it (``own: false``).

With a softmax, Eq. 3 is the softmax after adding log m to the scores. A transform in place of the softmax may come
after the factor (``mask: scores``) or before it (``mask: weights``: its weights are multiplied, then normalised again).
So top-k with ``scores`` keeps the k largest weights after the span, as the code of Zhao et al. does, and with
``weights`` the k largest scores of the keys within reach, as their Eq. 6 says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from sparsenmt.model.sockets import Span
from sparsenmt.sparsity.patterns import check_self_attention
from sparsenmt.sparsity.registry import Options, register


class AdaptiveSpanOptions(Options):
    maximum: int = Field(1024, ge=1, le=2**20, description="Longest span S, in positions, from the nearest one on.")
    ramp: int = Field(32, ge=1, le=2**20, description="Length R of the ramp on which the factor falls from 1 to 0.")
    init: float = Field(0.0, ge=0, le=1, description="Initial span z, as a share of `maximum`.")
    own: bool = Field(
        True, description="Attend to the query's own position; false, as in the authors' code: only to those before it."
    )
    mask: Literal["scores", "weights"] = Field(
        "scores",
        description="`scores`: the transform comes after the factor, so that `topk` keeps the largest weights within "
        "the span; `weights`: the factor multiplies the transform's weights, which then are normalised again.",
    )

    younger = frozenset({"own"})

    @model_validator(mode="after")
    def _ramp_fits(self) -> AdaptiveSpanOptions:
        if self.ramp > self.maximum:
            raise ValueError(f"the ramp, {self.ramp}, is longer than the longest span, {self.maximum}")
        return self


class AdaptiveSpan(Span):
    """The factors of learned spans. The parameter ``share`` (H) is s."""

    def __init__(self, heads: int, options: AdaptiveSpanOptions) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.full((heads,), options.init))
        self.on = options.mask
        self._maximum, self._ramp = options.maximum, options.ramp
        self._nearest = 0 if options.own else 1  # the distance of the nearest key

    @property
    def reach(self) -> int:
        longest = float(self.share.detach().max()) * self._maximum + self._ramp
        return min(math.ceil(longest), self._maximum) - 1 + self._nearest

    def forward(self, distances: Tensor) -> Tensor:
        spans = (self.share * self._maximum)[:, None, None]
        places = distances - self._nearest
        factors = ((self._ramp + spans - places) / self._ramp).clamp(0, 1)
        return factors.masked_fill((places < 0) | (places >= self._maximum), 0.0)

    def losses(self) -> Mapping[str, Tensor]:
        return {"span": self._maximum * self.share.mean()}

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        return {"share": (0.0, 1.0)}

    def logged(self) -> Mapping[str, Tensor]:
        """The spans with their ramps, in positions: the keys that a head attends to where the text is long enough."""
        return {"span": (self.share * self._maximum + self._ramp).clamp_max(self._maximum)}


@register(
    "span",
    "adaptive_span",
    options=AdaptiveSpanOptions,
    examples=(
        {"maximum": 8, "ramp": 3, "init": 0.3},
        {"maximum": 6, "ramp": 2, "init": 0.2, "mask": "weights"},
        {"maximum": 5, "ramp": 2, "init": 0.3, "own": False},
    ),
    refuses=("cross",),
)
def build(options: AdaptiveSpanOptions, *, site: str, heads: int) -> AdaptiveSpan:
    check_self_attention(site)
    return AdaptiveSpan(heads, options)
