"""Ancestral sampling, from the distribution after temperature, top-k and top-p (Holtzman et al. 2020).

Shapes: B sentences that are not finished, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsenmt.decoding.single_hypothesis import Pick, SingleHypothesisSearch
from sparsenmt.decoding.strategies import EncodedBatch
from sparsenmt.recipe.schema import Decoding

STRIDE = 2_654_435_761
"""Distance between the samples of one line in the numbers that choose their random numbers, odd and near 2^32 over the
golden ratio: those of the next lines are far away."""


def make_sampler(options: Decoding, line_numbers: Sequence[int], length: int, device: torch.device) -> Pick:
    """Make the function that draws tokens for a batch, up to ``length`` of them.

    Each sentence has its own random numbers, by the seed and its line number: samples do not depend on the batch. Those
    of part n of a long line are those of its number + n * `STRIDE`.
    """
    draws = torch.empty(len(line_numbers), length, dtype=torch.float64)
    for row, number in enumerate(line_numbers):
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + number)
        draws[row] = torch.rand(length, generator=generator, dtype=torch.float64)
    draws = draws.to(device)

    def pick(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        width = min(options.top_k, logits.shape[-1]) if options.top_k else logits.shape[-1]
        values, tokens = logits.topk(width, -1)
        # The largest is subtracted first: dividing by a very low temperature must not give a difference of infinities.
        probabilities = ((values - values[:, :1]).double() / options.temperature).softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        kept = probabilities.masked_fill(before >= options.top_p, 0.0)
        cumulative = kept.cumsum(-1)
        point = draws[rows, step][:, None] * cumulative[:, -1:]
        index = (cumulative <= point).sum(-1, keepdim=True)
        index = torch.minimum(index, (kept > 0).sum(-1, keepdim=True) - 1)  # rounding may carry the point to the end
        return tokens.gather(1, index).squeeze(1)

    return pick


class SamplingSearch(SingleHypothesisSearch):
    """Ancestral sampling."""

    name = "sample"

    def picker(self, batch: EncodedBatch) -> Pick:
        return make_sampler(self.options, batch.line_numbers, int(batch.limits.max()), batch.limits.device)
