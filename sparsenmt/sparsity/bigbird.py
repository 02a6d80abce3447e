"""BigBird attention: a window, a few global positions and a few random ones.

Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", section 2, cut into parts as Zhao et al. do: of k
positions half for the window, a quarter global, a quarter random. What does not divide by 4 goes to the window.
Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.geometry import FARTHEST, is_causal
from sparsenmt.sparsity.global_pattern import Global
from sparsenmt.sparsity.random_pattern import RandomOptions, ranks, smallest
from sparsenmt.sparsity.registry import register
from sparsenmt.sparsity.window import Window


class BigBirdOptions(RandomOptions):
    k: int = Field(
        8, ge=4, le=FARTHEST, description="Positions that a query attends to, its own included; from 4, one a part."
    )


class BigBird:
    """Random positions are drawn from those that neither the window nor the global part shows: k different ones in all.

    Global positions see everything that is visible.
    """

    reach = None

    def __init__(self, k: int, seed: int, *, causal: bool) -> None:
        self.quarter = k // 4
        self.seed = seed
        self.window = Window(k - 2 * self.quarter, causal=causal)
        self.first = Global(self.quarter, causal=causal)

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        fixed = self.window(queries, positions, visible) | self.first(queries, positions, visible)
        return fixed | smallest(ranks(queries, positions, self.seed), visible & ~fixed, self.quarter)


@register("pattern", "bigbird", options=BigBirdOptions, examples=({"k": 4}, {"k": 8, "seed": 3}))
def build(options: BigBirdOptions, *, site: str) -> BigBird:
    return BigBird(options.k, options.seed, causal=is_causal(site))
