"""Top-k selective attention out of a window: the neighbours, and the highest scores beyond them.

Zhao, Lin, Zhang, Su and Sun, "Extremely Sparse Transformer with Top-k Selective Attention", section 4.3 ("OOW"): "each
token selects top-k/2 tokens from the remaining tokens beyond a local window of size k/2". Self-attention only; they use
it for documents, in blocks of 512 tokens.
Shapes: B rows, H heads, Q queries, K keys.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.patterns import is_causal
from sparsenmt.sparsity.registry import Options, register
from sparsenmt.sparsity.topk import largest, softmax_among
from sparsenmt.sparsity.window import WindowPattern


class TopKOutOfWindowOptions(Options):
    k: int = Field(
        8,
        ge=2,
        le=2**20,
        description="Number of keys that a query attends to: half in a window around it, half outside of it.",
    )


class TopKOutOfWindow(Transform):
    """One softmax over both parts. If k is odd, the window gets the smaller half."""

    position_dependent = True

    def __init__(self, k: int, *, causal: bool) -> None:
        super().__init__()
        self.window = WindowPattern(k // 2, causal=causal)
        self.rest = k - k // 2

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        visible = keys.visible()
        near = self.window(keys.queries, keys.positions, visible)
        kept = largest(scores, visible & ~near, self.rest, keys.counts)
        return softmax_among(scores, kept | (visible & near), keys)


@register("transform", "topk_oow", options=TopKOutOfWindowOptions, examples=({"k": 4}, {"k": 3}), refuses=("cross",))
def build(options: TopKOutOfWindowOptions, *, site: str, heads: int) -> TopKOutOfWindow:
    return TopKOutOfWindow(options.k, causal=is_causal(site))
