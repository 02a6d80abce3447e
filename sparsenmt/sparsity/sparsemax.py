"""Sparsemax attention weights: the Euclidean projection of the scores onto the simplex (Martins and Astudillo 2016,
"From Softmax to Sparsemax", ICML). The sparse end, alpha = 2, of alpha-entmax.
"""

from __future__ import annotations

from sparsenmt.sparsity.registry import Options, register
from sparsenmt.sparsity.simplex.transform import EntmaxTransform


class Sparsemax(EntmaxTransform):
    """max(0, score - tau) * count, with the tau at which a row's mass is 1."""

    alphas = 2.0


@register("transform", "sparsemax")
def build(options: Options, *, site: str, heads: int) -> Sparsemax:
    return Sparsemax()
