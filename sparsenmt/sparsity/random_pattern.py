"""Random attention: every query sees a fixed random set of positions.

Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", section 2 (the random part); a baseline of Zhao et
al. ("Random Attention"), the only one that they also use at cross-attention.

The keys that a query i sees depend only on hash(seed, i, j) of the visible keys j: not on padding, the device, or the
number of positions that are decoded at once.
Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.kth_largest import kth_largest
from sparsenmt.sparsity.patterns import FARTHEST, PatternOptions, distance, once
from sparsenmt.sparsity.registry import register

_WORD = 2**32 - 1


class RandomOptions(PatternOptions):
    seed: int = Field(0, ge=0, le=_WORD, description="Random seed of the positions.")


def mixed(x: Tensor) -> Tensor:
    """Hash 32-bit words by a bijection: `lowbias32` (C. Wellons, "Hash Prospector").

    x: int64 from 0 to 2^32 - 1. Products overflow, which leaves their lower 32 bits right.
    """
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def ranks(queries: Tensor, positions: Tensor, seed: int) -> Tensor:
    """(B or 1, 1, Q, K) int64 under 2^52: hash(seed, i, j), then j, so that no two keys of a query are equal."""
    rows = mixed(mixed(once(queries) & _WORD) ^ seed)[:, None, :, None]
    columns = once(positions)[:, None, None, :]
    return mixed((rows + mixed(columns & _WORD)) & _WORD) * FARTHEST + columns % FARTHEST


def smallest(values: Tensor, among: Tensor, k: int) -> Tensor:
    """(B, 1, Q, K) bool: the keys with the k smallest values ``among`` some, or all if there are fewer."""
    width = among.shape[-1]
    if k >= width:
        return among
    hidden = torch.where(among, values, 2**62)
    return among & (hidden <= kth_largest(hidden, width - k + 1))


class RandomPattern:
    """The k visible positions with the smallest hash; in the decoder, the query's own is always among them."""

    reach = None

    def __init__(self, k: int, seed: int, *, causal: bool) -> None:
        self.k = k
        self.seed = seed
        self.causal = causal

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        values = ranks(queries, positions, self.seed)
        if self.causal:
            values = values.masked_fill(distance(queries, positions) == 0, -1)
        return smallest(values, visible.expand(-1, -1, queries.shape[1], -1), self.k)


@register("pattern", "random", options=RandomOptions, examples=({"k": 3}, {"k": 2, "seed": 7}))
def build(options: RandomOptions, *, site: str) -> RandomPattern:
    return RandomPattern(options.k, options.seed, causal=site == "decoder_self")
