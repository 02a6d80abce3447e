"""Window attention: every query sees its neighbourhood.

Beltagy, Peters and Cohan 2020, "Longformer: The Long-Document Transformer", section 3.1; a baseline of Zhao et al.
("Window Attention").
Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

from torch import Tensor

from sparsenmt.sparsity.patterns import PatternOptions, distance, is_causal, window_reach
from sparsenmt.sparsity.registry import register


class WindowPattern:
    """k consecutive positions: centred on the query in the encoder, the last k in the decoder.

    A window that is wider than the text is full attention.
    """

    contiguous = True

    def __init__(self, k: int, *, causal: bool) -> None:
        self.reach = window_reach(k, causal=causal)

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        back = distance(queries, positions)
        return (back <= self.reach[0]) & (back >= -self.reach[1])


@register("pattern", "window", options=PatternOptions, examples=({"k": 4}, {"k": 1}), refuses=("cross",))
def build(options: PatternOptions, *, site: str) -> WindowPattern:
    return WindowPattern(options.k, causal=is_causal(site))
