"""The transform that all alpha-entmax methods are, with the alphas that each gives."""

from __future__ import annotations

from torch import Tensor

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.simplex.blockwise import attend, computable
from sparsenmt.sparsity.simplex.function import NEWTON, Solver, entmax


class EntmaxTransform(Transform):
    """alpha-entmax: see `simplex.function`."""

    solver: Solver = NEWTON

    @property
    def alphas(self) -> float | Tensor:
        """From 1 to 2; a tensor (heads) has one for each learned head."""
        raise NotImplementedError

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        return entmax(scores, self.alphas, keys.visible(), keys.counts, self.solver)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keys: Keys, dropout: float, *, causal: bool) -> Tensor | None:
        alphas = self.alphas
        return attend(q, k, v, alphas, keys, dropout, causal=causal) if computable(q, k, alphas) else None
