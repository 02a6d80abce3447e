"""Block attention: the sequence is cut into blocks, and a query sees its own block.

Shen et al. 2018, "Bi-Directional Block Self-Attention for Fast and Memory-Efficient Sequence Modeling", without
their attention between blocks; a baseline of Zhao et al. ("Block Attention").
Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

from torch import Tensor

from sparsenmt.sparsity.patterns import PatternOptions, is_causal, once
from sparsenmt.sparsity.registry import register


class BlockPattern:
    """Blocks of k positions from position 0 on. In the decoder a query sees no later positions of its block."""

    def __init__(self, k: int, *, causal: bool) -> None:
        self.segment = k
        self.reach = (k - 1, 0 if causal else k - 1)

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        return (once(queries) // self.segment)[:, None, :, None] == (once(positions) // self.segment)[:, None, None, :]


@register("pattern", "block", options=PatternOptions, examples=({"k": 3},), refuses=("cross",))
def build(options: PatternOptions, *, site: str) -> BlockPattern:
    return BlockPattern(options.k, causal=is_causal(site))
