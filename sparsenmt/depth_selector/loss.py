"""The loss of the depth classifier (Dabre, Rubino and Fujita 2020, Section 4.2).

Shapes: B sentences, K depths.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def selector_loss(logits: Tensor, labels: Tensor, prior: Tensor, *, alpha: float, beta: float, weight: float) -> Tensor:
    """Return ``weight`` x cross-entropy + (1 - ``weight``) x (1 - soft F_beta), the mean over the batch.

    Args:
        logits: (B, K).
        labels: (B, K) 1 for every depth whose translation is the best, else 0; at least one 1 per sentence.
        prior: (K) share of the training sentences with the label: the paper's p(y_k).
        alpha: selector alpha, the exponent of the weight (1 - p(y_k))^alpha of positive labels.
        beta: of F_beta; above 1 favours recall, below 1 precision.
        weight: the paper's lambda, from 0 to 1.

    Returns:
        a scalar.
    """
    entropy = weighted_entropy(logits, labels, prior, alpha).mean(1)
    return (weight * entropy + (1 - weight) * (1 - soft_f(logits, labels, beta))).mean()


def weighted_entropy(logits: Tensor, labels: Tensor, prior: Tensor, alpha: float) -> Tensor:
    """Return binary cross-entropies (B, K): Equation 3 with w_k = 1, as the paper does not define w_k."""
    return -((1 - prior) ** alpha * labels * F.logsigmoid(logits) + (1 - labels) * F.logsigmoid(-logits))


def soft_f(logits: Tensor, labels: Tensor, beta: float) -> Tensor:
    """Return F_beta (B) of each sentence's labels with probabilities in place of decisions, Equation 4.

    With P = mu / sum of probabilities and R = mu / sum of labels it is (1 + beta^2) mu / (beta^2 sum of labels + sum of
    probabilities), which is defined for mu = 0, too.
    """
    probabilities = logits.sigmoid()
    hit = (probabilities * labels).sum(1)
    return (1 + beta**2) * hit / (beta**2 * labels.sum(1) + probabilities.sum(1))
