"""The functions that the compiled kernels of training compute, by PyTorch's operators.

Shapes: B sentences, H heads, Q queries, K keys, E head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = 1 << 16
"""Values of the 16 random bits that decide about a number in dropout."""


@dataclass(frozen=True)
class HiddenKeys:
    """The keys that attention does not see.

    Args:
        bias: (B, K) in fp32, added to the scores; minus infinity hides a key. None: no key is hidden for all queries.
        causal: no query sees later keys.
        reach: the keys before and after its own position that a query sees; None: all.
    """

    bias: Tensor | None = None
    causal: bool = False
    reach: tuple[int, int] | None = None


def plain_drop(x: Tensor, draws: Tensor, dropped: int, added: Tensor | None = None) -> Tensor:
    """Dropout of x, scaled to keep the expectation, plus a tensor of its shape.

    Args:
        draws: 16 random bits for each number of x, flat, int16.
        dropped: a number becomes zero with probability ``dropped`` / 65,536.
    """
    keep = torch.ge(draws.view(x.shape), dropped - LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype))
    kept = (x * keep).mul_(LEVELS / (LEVELS - dropped))
    return kept if added is None else kept.add_(added)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, hidden: HiddenKeys) -> Tensor:
    """The function that `GradientKernels.attend` computes, by PyTorch's operators."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if hidden.bias is not None:
        scores = scores + hidden.bias[:, None, None].to(scores.dtype)
    later = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    if hidden.causal:
        scores = scores.masked_fill(later > 0, -torch.inf)
    if hidden.reach is not None:
        scores = scores.masked_fill((later < -hidden.reach[0]) | (later > hidden.reach[1]), -torch.inf)
    lost = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(lost, 0.0), -1).masked_fill(lost, 0.0) @ v
