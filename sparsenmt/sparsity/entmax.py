"""alpha-entmax attention weights, with one alpha for all heads, or one that every head learns (Correia, Niculae and
Martins 2019, "Adaptively Sparse Transformers", EMNLP).

alpha = 1 is softmax, 1.5 1.5-entmax, 2 sparsemax. Learned, alpha = 1.01 + 0.99 sigmoid(a): the paper says
1 + sigmoid(a), kept above 1.01, as gradients divide by (alpha - 1)^2; a bound that is part of the function has a
gradient everywhere, which a clamp has not. The logits a begin as draws from a standard normal, where the paper says "at
random". They are vectors, which weight decay does not change.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from sparsenmt.model.sockets import Transform
from sparsenmt.sparsity.registry import MethodPlace, Options, register
from sparsenmt.sparsity.simplex.transform import EntmaxTransform

NAME = "entmax"
LOW, SPAN = 1.01, 0.99  # range of learned alphas: from LOW to LOW + SPAN


class EntmaxOptions(Options):
    alpha: float | Literal["learned"] = Field(
        "learned",
        description="Entmax alpha: from 1 (softmax) to 2 (sparsemax), or `learned`: one for each head, from 1.01 to 2.",
    )
    init: float | None = Field(
        None, description="Initial value of learned alphas. `null`: random, mostly from 1.2 to 1.8."
    )
    tie: Literal["none", "layer", "site", "all"] = Field(
        "none",
        description="Sharing of learned alphas. `none`: each head, layer and site has its own; `layer`: the heads of a "
        "site in a layer share one; `site`: all heads of a site; `all`: all heads of all sites with this setting.",
    )
    per: Literal["block", "application"] = Field(
        "block",
        description="Learned alphas of a layer that is applied several times: the same each time (`block`), or one for "
        "each `application`.",
    )

    @field_validator("alpha")
    @classmethod
    def _within(cls, alpha: float | str) -> float | str:
        if isinstance(alpha, str) or 1 <= alpha <= 2:
            return alpha
        if alpha < 1:
            raise ValueError(
                f"must be at least 1 (softmax), not {alpha:g}: below 1 no weight is ever 0, and the mass is spread "
                "wider than by softmax"
            )
        raise ValueError(
            f"must be at most 2, not {alpha:g}: beyond sparsemax a weight meets 0 at a right angle, and its gradient "
            "has no bound"
        )

    @model_validator(mode="after")
    def _only_if_learned(self) -> EntmaxOptions:
        if self.alpha != "learned":
            given = [
                name for name in ("init", "tie", "per") if getattr(self, name) != type(self).model_fields[name].default
            ]
            if given:
                raise ValueError(f"`{given[0]}` is about a learned alpha, but alpha is {self.alpha:g}")
        if self.init is not None and not LOW < self.init < LOW + SPAN:
            raise ValueError(f"`init` must lie between 1.01 and 2, the bounds of a learned alpha, not {self.init:g}")
        return self


def alpha_of(logits: Tensor) -> Tensor:
    """The alphas of learned logits (`alpha` in a model's weights)."""
    return LOW + SPAN * torch.sigmoid(logits)


class Entmax(EntmaxTransform):
    """One alpha for all heads."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.fixed = alpha

    @property
    def alphas(self) -> float:
        return self.fixed


class AdaptiveEntmax(EntmaxTransform):
    """A learned alpha for each head. The parameter ``alpha`` holds the logits a: (heads), or (1) where heads share.

    Args:
        owner: the transform whose parameter this one shares; None: it has its own.
    """

    def __init__(self, heads: int, logits: Tensor | None, owner: AdaptiveEntmax | None = None) -> None:
        super().__init__()
        self.heads = heads
        self._owner = None if owner is None else (owner,)  # in a tuple it is no submodule: a weight has one name
        if owner is None:
            assert logits is not None
            self.alpha = nn.Parameter(logits)

    @property
    def alphas(self) -> Tensor:
        """(heads): alpha of each learned head."""
        logits = self.alpha if self._owner is None else self._owner[0].alpha
        return alpha_of(logits).expand(self.heads)

    def logged(self) -> Mapping[str, Tensor]:
        return {"alpha": self.alphas}


@register(
    "transform",
    NAME,
    options=EntmaxOptions,
    shares=True,
    examples=({"alpha": "learned"}, {"alpha": 1.3}, {"alpha": "learned", "tie": "all", "init": 1.6}),
)
def build(options: EntmaxOptions, *, site: str, heads: int, place: MethodPlace) -> Transform:
    if options.alpha != "learned":
        return Entmax(float(options.alpha))
    key = _key(options, site, place)
    if key in place.shared:
        owner, init = place.shared[key]
        if init != options.init:
            raise ValueError("sites that share an alpha begin with one `init`")
        return AdaptiveEntmax(heads, None, owner)
    size = heads if options.tie == "none" else 1
    if options.init is None:
        logits = torch.randn(size)
    else:
        share = (options.init - LOW) / SPAN
        logits = torch.full((size,), math.log(share / (1 - share)))
    made = AdaptiveEntmax(heads, logits)
    place.shared[key] = (made, options.init)
    return made


def _key(options: EntmaxOptions, site: str, place: MethodPlace) -> Hashable:
    """The key of `MethodPlace.shared`, equal for transforms that share their logits."""
    if options.tie == "all":
        return (NAME,)
    if options.tie == "site":
        return (NAME, site)
    return (NAME, site, place.block if options.per == "block" else place.step, options.per)
