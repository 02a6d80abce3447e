"""From logits to the best continuations, by a compiled kernel where it is faster.

Shapes: N rows (hypotheses), B sentences, J hypotheses each, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.kernels import MOST_IN_ORDER, Kernels

_BLOCK = 2**19  # logits whose exponentials a CPU computes at a time: they fit the cache of a core


def log_normalizer(logits: Tensor, kernels: Kernels | None = None) -> Tensor:
    """(N, V) -> (N, 1): log of the sum of exponentials, without materialising a softmax."""
    if (found := _suited(kernels, logits, "log sums")) is not None:
        return found.log_sums(logits)
    if logits.device.type != "cpu":
        return logits.logsumexp(-1, keepdim=True)
    rows = max(_BLOCK // logits.shape[1], 1)
    return torch.cat([block.logsumexp(-1, keepdim=True) for block in logits.split(rows)])


def best_tokens(logits: Tensor, width: int, kernels: Kernels | None = None) -> tuple[Tensor, Tensor]:
    """(N, V) -> logits and tokens (N, width), best first."""
    found = _suited(kernels, logits, "best tokens") if width <= MOST_IN_ORDER else None
    if found is not None:
        return found.best(logits, width)
    values, tokens = logits.topk(width, -1)
    return values, tokens


def candidates(
    logits: Tensor,
    scores: Tensor,
    forbid: Callable[[Tensor], Tensor],
    never: Sequence[int] | None,
    width: int,
    kernels: Kernels | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of every sentence, as `contract.Continuations` says.

    Args:
        logits: (B * J, V); they are overwritten.
        scores: (B, J) log-probabilities so far.
        forbid: logits -> the logits, minus infinity at forbidden tokens, in place; called when the normalizer is
            known, so that log-probabilities are the model's.
        never: all that it forbids, where that is the same for all hypotheses; None: it is not.
        width: continuations of each sentence.
    """
    (sentences, opened), vocabulary = scores.shape, logits.shape[1]
    if never is not None and scores.dtype == logits.dtype:
        fits = max(width, len(never) + 1) <= min(vocabulary, MOST_IN_ORDER)
        if fits and (found := _suited(kernels, logits, "candidates")) is not None:
            return found.candidates(logits, scores.contiguous(), never, width)
    normalizer = log_normalizer(logits, kernels)
    each = min(width, vocabulary)
    values, best_of_rows = best_tokens(forbid(logits), each, kernels)
    totals = (values - normalizer).view(sentences, opened, each) + scores[:, :, None]
    closed = scores == -math.inf
    unsound = (normalizer.view_as(scores).isnan() & ~closed).any(1)
    totals = totals.masked_fill(closed[:, :, None], -math.inf).masked_fill(unsound[:, None, None], math.nan)
    best, where = totals.view(sentences, -1).topk(min(width, opened * each), -1)
    parents, continuations = where // each, best_of_rows.view(sentences, -1).gather(1, where)
    missing = width - best.shape[1]  # if the vocabulary is smaller than the width
    if missing > 0:
        best = F.pad(best, (0, missing), value=-math.inf)
        parents, continuations = F.pad(parents, (0, missing)), F.pad(continuations, (0, missing))
    return best, parents, continuations


def _suited(kernels: Kernels | None, logits: Tensor, kind: str) -> Kernels | None:
    """The kernels, if there are any, they read such logits, and their ``kind`` is faster; otherwise None."""
    suits = kernels is not None and logits.dtype == torch.float32 and logits.stride(-1) == 1
    return kernels if suits and kernels is not None and kernels.faster(kind, logits.shape[-1]) else None
