"""1.5-entmax attention weights (Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", ACL): half way
from softmax to sparsemax. In Transformers: Correia, Niculae and Martins 2019, section 4, "1.5-entmax".
"""

from __future__ import annotations

from torch import Tensor

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register
from sparsenmt.sparsity.simplex.function import entmax


class Entmax15(Transform):
    """max(0, score / 2 - tau)^2 * count, with the tau at which a row's mass is 1."""

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        return entmax(scores, 1.5, keys.visible(), keys.counts)


@register("transform", "entmax15")
def build(options: Options, *, site: str, heads: int) -> Entmax15:
    return Entmax15()
