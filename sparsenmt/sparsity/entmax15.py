"""1.5-entmax attention weights (Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", ACL): half way
from softmax to sparsemax. In Transformers: Correia, Niculae and Martins 2019, section 4, "1.5-entmax".
"""

from __future__ import annotations

from sparsenmt.sparsity.registry import Options, register
from sparsenmt.sparsity.simplex.transform import EntmaxTransform


class Entmax15(EntmaxTransform):
    """max(0, score / 2 - tau)^2 * count, with the tau at which a row's mass is 1."""

    alphas = 1.5


@register("transform", "entmax15")
def build(options: Options, *, site: str, heads: int) -> Entmax15:
    return Entmax15()
