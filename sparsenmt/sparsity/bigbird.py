"""BigBird attention: a window, a few global positions and a few random ones.

Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", section 2, divided as Zhao et al. do: of k
positions, half form the window, a quarter are global, a quarter random; a remainder goes to the window.
Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.global_pattern import GlobalPattern
from sparsenmt.sparsity.patterns import FARTHEST, is_causal
from sparsenmt.sparsity.random_pattern import RandomOptions, ranks, smallest
from sparsenmt.sparsity.registry import register
from sparsenmt.sparsity.window import WindowPattern


class BigBirdOptions(RandomOptions):
    k: int = Field(
        8, ge=4, le=FARTHEST, description="Number of positions that a query attends to, its own included; at least 4."
    )


class BigBirdPattern:
    """Random positions are drawn from those that are neither in the window nor global, so that k are seen in all.

    Global positions see everything that is visible. Random ones are drawn from all that is visible, so that no part of
    it can be left out: the pattern only masks.
    """

    reach = None

    def __init__(self, k: int, seed: int, *, causal: bool) -> None:
        self.quarter = k // 4
        self.seed = seed
        self.window = WindowPattern(k - 2 * self.quarter, causal=causal)
        self.first = GlobalPattern(self.quarter, causal=causal)

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        fixed = self.window(queries, positions, visible) | self.first(queries, positions, visible)
        return fixed | smallest(ranks(queries, positions, self.seed), visible & ~fixed, self.quarter)


@register("pattern", "bigbird", options=BigBirdOptions, examples=({"k": 4}, {"k": 8, "seed": 3}), refuses=("cross",))
def build(options: BigBirdOptions, *, site: str) -> BigBirdPattern:
    return BigBirdPattern(options.k, options.seed, causal=is_causal(site))
