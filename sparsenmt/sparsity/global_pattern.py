"""Global attention: a few positions see all others and are seen by all; nothing else is seen.

Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", section 2 (the global part); a baseline of Zhao et
al. ("Global Attention": "most tokens can only focus on the first small part of the whole sequence").
Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

from torch import Tensor

from sparsenmt.sparsity.patterns import PatternOptions, distance, is_causal, once
from sparsenmt.sparsity.registry import register


class GlobalPattern:
    """The first k positions are visible to all and see all; the others see only these.

    In the decoder a query also sees its own position (k + 1 positions), and no later one.
    """

    reach = (0, 0)

    def __init__(self, k: int, *, causal: bool) -> None:
        self.k = self.first = k
        self.causal = causal

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        seen = (once(queries) < self.k)[:, None, :, None] | (once(positions) < self.k)[:, None, None, :]
        return seen | (distance(queries, positions) == 0) if self.causal else seen


@register("pattern", "global", options=PatternOptions, examples=({"k": 2},), refuses=("cross",))
def build(options: PatternOptions, *, site: str) -> GlobalPattern:
    return GlobalPattern(options.k, causal=is_causal(site))
