"""Relative positions of Transformer-XL: scores depend on the distance between query and key, not on places in the text.

Dai, Yang, Yang, Carbonell, Le and Salakhutdinov 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length
Context", section 3.3: the score of query i and key j is (q_i + u) . k_j + (q_i + v) . (W_r R_(i-j)), with sinusoids R,
and with u and v that all layers share. Their evaluation reads a longer memory than training, and clamps distances.
Shapes: B rows, H heads, Q queries, N distances, E head size, D model dimension.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsenmt.model.sockets import ScoreTerm
from sparsenmt.sparsity.patterns import check_self_attention
from sparsenmt.sparsity.registry import MethodPlace, Options, register

NAME = "transformer_xl"
_DEVIATION = 0.02  # of the initial biases, as in the authors' code


class TransformerXLOptions(Options):
    untie: bool = Field(False, description="Give every layer biases of its own; otherwise the layers of a site share.")
    evaluation_clamp: int | None = Field(
        None,
        ge=1,
        le=2**20,
        description="Largest distance outside of training, where farther keys count as this far. Default: none.",
    )

    younger = frozenset({"evaluation_clamp"})


def sinusoids(distances: Tensor, dimension: int) -> Tensor:
    """distances (N) -> (N, D) float64: sines in the first half, cosines in the second (Vaswani et al. 2017, 3.5)."""
    rates = torch.arange(0, dimension, 2, dtype=torch.float64, device=distances.device) * (-math.log(1e4) / dimension)
    angles = distances[:, None] * rates.exp()
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :dimension]


class _Biases(nn.Module):
    """The biases u and v of queries, (H, 1, E) each."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.content = nn.Parameter(torch.randn(heads, 1, size) * _DEVIATION)
        self.distance = nn.Parameter(torch.randn(heads, 1, size) * _DEVIATION)


class RelativePositions(ScoreTerm):
    """The term (q + v) . (W_r R), and the bias u of queries.

    Args:
        owner: the term whose biases this one shares; None: it has its own.
        clamp: outside of training, farther keys count as at this distance; None: none do.
    """

    def __init__(
        self, heads: int, size: int, dimension: int, owner: RelativePositions | None = None, clamp: int | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads * size, dimension))  # W_r
        nn.init.xavier_uniform_(self.weight)
        self._owner = None if owner is None else (owner,)  # in a tuple it is no submodule: a weight has one name
        if owner is None:
            self.biases = _Biases(heads, size)
        self._size, self._clamp = size, clamp
        self._known: tuple[object, Tensor] | None = None  # projected sinusoids of distances, in evaluation

    @property
    def _shared(self) -> _Biases:
        biases: _Biases = self.biases if self._owner is None else self._owner[0].biases
        return biases

    def content(self, q: Tensor) -> Tensor:
        return q + self._shared.content.to(q.dtype)

    def forward(self, q: Tensor, distances: Tensor) -> Tensor:
        if self._clamp is not None and not self.training:
            distances = distances.clamp(-self._clamp, self._clamp)
        vectors = self._vectors(distances).to(q.dtype)
        return (q + self._shared.distance.to(q.dtype)) @ vectors.transpose(-1, -2)

    def _vectors(self, distances: Tensor) -> Tensor:
        """(H, N, E): W_r R. Outside of training they are kept: a step of decoding asks for nearly the same ones."""
        if torch.is_grad_enabled():
            return self._project(distances)
        weight = self.weight
        state = (weight.data_ptr(), None if weight.is_inference() else weight._version, weight.dtype)
        lowest, highest = int(distances.min()), int(distances.max())
        if lowest < 0:
            return self._project(distances)
        known = self._known  # another thread may replace it
        if known is None or known[0] != state or known[1].shape[1] <= highest:
            vectors = self._project(torch.arange(max(2 * highest, 64), device=distances.device))
            self._known = known = state, vectors
        return known[1].index_select(1, distances)

    def _project(self, distances: Tensor) -> Tensor:
        projected = sinusoids(distances, self.weight.shape[1]).to(self.weight.dtype) @ self.weight.t()
        split: Tensor = projected.unflatten(-1, (-1, self._size))
        return split.transpose(0, 1)


@register(
    "position",
    NAME,
    options=TransformerXLOptions,
    examples=({}, {"untie": True}, {"evaluation_clamp": 2}),
    refuses=("cross",),
)
def build(
    options: TransformerXLOptions, *, site: str, heads: int, size: int, dimension: int, place: MethodPlace
) -> RelativePositions:
    check_self_attention(site)
    owner = None if options.untie else place.shared.get((NAME, site))
    made = RelativePositions(heads, size, dimension, owner, options.evaluation_clamp)
    place.shared.setdefault((NAME, site), made)
    return made
