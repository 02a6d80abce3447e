"""Dilated window attention: a window with gaps, which reaches farther.

Beltagy, Peters and Cohan 2020, "Longformer: The Long-Document Transformer", section 3.1 (after the dilated convolutions
of Yu and Koltun 2016); a baseline of Zhao et al. ("Dilated Attention"), which does not give the rate.
Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.patterns import FARTHEST, PatternOptions, distance, is_causal, window_reach
from sparsenmt.sparsity.registry import register


class DilatedOptions(PatternOptions):
    rate: int = Field(
        2, ge=1, le=FARTHEST, description="Distance between neighbouring visible positions; 1 is a window."
    )


class DilatedPattern:
    """k positions at distances that are multiples of ``rate``: around the query in the encoder, back from it in the
    decoder.
    """

    def __init__(self, k: int, rate: int, *, causal: bool) -> None:
        left, right = window_reach(k, causal=causal)
        self.stride = rate
        self.reach = (rate * left, rate * right)

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        back = distance(queries, positions)
        return (back <= self.reach[0]) & (back >= -self.reach[1]) & (back % self.stride == 0)


@register("pattern", "dilated", options=DilatedOptions, examples=({"k": 4}, {"k": 3, "rate": 3}), refuses=("cross",))
def build(options: DilatedOptions, *, site: str) -> DilatedPattern:
    return DilatedPattern(options.k, options.rate, causal=is_causal(site))
