"""Guided alignment: a loss that draws one head of cross-attention towards given word alignments.

Of a target token t with links, y_t is the uniform distribution over the source tokens linked to it, and p_t are the
head's weights; its loss is the cross-entropy - sum_s y_ts log p_ts (Chen et al. 2016, "Guided Alignment Training for
Topic-Aware Neural Machine Translation"; Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer
Models", Eq. 2 and 3). Tokens without links have none, and links to source tokens that a pattern or filter hides from
the target token are none. Losses are averaged like those of the tokens themselves.

The gradient with regard to the scores is p_t - y_t. That of a softmax is this, and of sparsemax and entmax this is the
gradient of their own loss (the Fenchel-Young loss: Peters, Niculae and Martins 2019, section 3), where the gradient of
the cross-entropy would vanish or be infinite at links whose weight is exactly 0; of top-k it raises links that the head
has not selected. What is logged is the cross-entropy, with weights below 2^-24 taken as 2^-24.

Shapes: B sentences, T target positions, S source positions, N links.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.model.protocol import RecordedHead

NAME = "guided_alignment"
"""The name of the loss in logs."""

_LEAST = 2.0**-24


@dataclass(frozen=True)
class AlignmentLoss:
    """The loss of one batch.

    Args:
        surrogate: a scalar whose gradient is that of the loss; its value has no meaning.
        value: the loss.
    """

    surrogate: Tensor
    value: Tensor


@dataclass(frozen=True)
class GuidedHead:
    """The head that alignments guide, and the weight of the loss."""

    head: RecordedHead
    weight: float

    def loss(self, links: Tensor, token_weights: Tensor) -> AlignmentLoss | None:
        """Return the loss of the head in the last forward pass.

        Args:
            links: (3, N) row, target and source position of each link.
            token_weights: (B, T) the weight of each token in the mean of an update.

        Returns:
            None: the head did not run, or no token has a link.
        """
        recorded = self.head.take()
        if recorded is None or not links.shape[1]:
            return None
        scores, weights, seen = recorded
        wanted = torch.zeros_like(weights)  # (B, T, S)
        wanted.index_put_((links[0], links[1], links[2]), wanted.new_ones(()))  # a number would be copied there
        wanted = wanted * seen
        counts = wanted.sum(-1, keepdim=True)
        wanted = wanted / counts.clamp_min(1.0)
        own = (token_weights * (counts.squeeze(-1) > 0)).to(weights.dtype)  # (B, T)
        gradient = (weights * (counts > 0) - wanted) * own[..., None]
        entropy = -(wanted * weights.clamp_min(_LEAST).log()).sum(-1)
        return AlignmentLoss((gradient * scores).sum() * self.weight, (entropy * own).sum())
