"""From logits to candidates, and from log-probabilities to scores. What all searches share.

Shapes: N rows (hypotheses), V vocabulary, T pieces so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.data.vocabulary import BOS, EOS, PAD
from sparsenmt.native.kernels import MOST_IN_ORDER, Kernels, kernels
from sparsenmt.recipe.schema import Decoding


@dataclass(frozen=True)
class Hypothesis:
    """A finished output.

    Args:
        tokens: pieces, without BOS and EOS.
        log_probability: sum over the pieces and EOS, in nats.
        score: after the length penalty; what hypotheses are ranked by.
        ended: with EOS, rather than cut at the maximum length.
    """

    tokens: list[int]
    log_probability: float
    score: float
    ended: bool


Lengths = TypeVar("Lengths", float, Tensor)


def length_divisor(lengths: Lengths, options: Decoding) -> Lengths:
    """What log-probabilities of so many pieces, EOS included, are divided by (Wu et al. 2016, Eq. 14).

    lengths: a number, or floating ones of any shape.
    """
    base, alpha = lengths, options.alpha if options.length_penalty != "none" else 0.0
    if options.length_penalty == "gnmt":
        base = (5.0 + lengths) / 6.0
    divisor: Lengths = base**alpha
    return divisor


def maximum_length(source_pieces: int, options: Decoding, positions: int) -> int:
    """Most pieces of an output, EOS included, for a source of so many pieces without EOS."""
    wanted = int(min(options.max_length_factor * source_pieces, positions)) + options.max_length_offset
    return min(max(wanted, options.min_length + 1, 1), positions)


NEVER = (PAD, BOS)
"""Pieces that never come next."""


def unrestricted(options: Decoding) -> bool:
    """Whether all other pieces may always come."""
    return not (options.min_length or options.no_repeat_ngram)


def forbid(logits: Tensor, tokens: Tensor, options: Decoding) -> Tensor:
    """Set what may not come next to -inf, in place. Call after `log_normalizer`: probabilities stay the model's.

    A hypothesis that nothing else may follow can end, even below the minimum length.
    logits (N, V), tokens (N, T) generated so far, without BOS; numbers below 0 before a row begins.
    """
    logits[:, PAD] = -math.inf
    logits[:, BOS] = -math.inf
    length, n = tokens.shape[1], options.no_repeat_ngram
    too_short, repeats = length < options.min_length, 0 < n <= length
    if not (too_short or repeats):
        return logits
    end = logits[:, EOS].clone()
    if repeats:
        windows = tokens.unfold(1, n, 1)  # (N, T - n + 1, n)
        suffix = tokens[:, length - n + 1 :]  # (N, n - 1)
        same = (windows[:, :, : n - 1] == suffix[:, None, :]).all(-1)  # (N, T - n + 1)
        same &= windows[:, :, n - 1] >= 0  # below: nothing, before a row begins
        # What is not banned writes into EOS's place, which repeats nothing: its logit is put back below.
        logits.scatter_(1, torch.where(same, windows[:, :, n - 1], EOS), -math.inf)
    if too_short:
        logits[:, EOS] = -math.inf
        # Where no n-gram was forbidden there is no need to look: some piece is left.
        if not repeats and logits.shape[1] > len((PAD, BOS, EOS)):
            return logits
        end = end.masked_fill(logits.amax(1) > -math.inf, -math.inf)
    logits[:, EOS] = end
    return logits


_BLOCK = 2**19  # logits whose exponentials are alive at a time: they stay in the cache of a core


def log_normalizer(logits: Tensor) -> Tensor:
    """(N, V) -> (N, 1): log of the sum of exponentials; no softmax over the vocabulary is ever written out."""
    found = _kernels_for(logits)
    if found is not None:
        return found.log_sums(logits)
    rows = max(_BLOCK // logits.shape[1], 1)
    return torch.cat([block.logsumexp(-1, keepdim=True) for block in logits.split(rows)])


def best_pieces(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(N, V) -> logits and pieces (N, width), best first."""
    found = _kernels_for(logits)
    if found is not None and width <= MOST_IN_ORDER:
        return found.best(logits, width)
    values, pieces = logits.topk(width, -1)
    return values, pieces


def candidates(
    logits: Tensor, tokens: Tensor, scores: Tensor, width: int, options: Decoding
) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of every sentence, best first; logits are changed. B sentences, J hypotheses each.

    Args:
        logits: (B * J, V).
        tokens: (B * J, T) so far, without BOS.
        scores: (B, J) log-probabilities so far.

    Returns:
        log-probabilities, hypotheses 0..J-1 that they continue, and pieces; (B, width). Minus infinity: there is none.
        NaN, in all of a sentence: a logit of a hypothesis that is open (its score above minus infinity) is no number.
    """
    (sentences, opened), vocabulary = scores.shape, logits.shape[1]
    plain = unrestricted(options)
    plain &= scores.dtype == logits.dtype and width <= min(vocabulary, MOST_IN_ORDER)
    found = _kernels_for(logits) if plain else None
    if found is not None:
        return found.candidates(logits, scores.contiguous(), NEVER, width)
    normalizer = log_normalizer(logits)
    each = min(width, vocabulary)
    values, pieces = best_pieces(forbid(logits, tokens, options), each)
    totals = (values - normalizer).view(sentences, opened, each) + scores[:, :, None]
    closed = scores == -math.inf
    unsound = (normalizer.view_as(scores).isnan() & ~closed).any(1)
    totals = totals.masked_fill(closed[:, :, None], -math.inf).masked_fill(unsound[:, None, None], math.nan)
    best, where = totals.view(sentences, -1).topk(min(width, opened * each), -1)
    parents, pieces = where // each, pieces.view(sentences, -1).gather(1, where)
    missing = width - best.shape[1]  # where the vocabulary is smaller than the beam is wide
    if missing > 0:
        best = F.pad(best, (0, missing), value=-math.inf)
        parents, pieces = F.pad(parents, (0, missing)), F.pad(pieces, (0, missing))
    return best, parents, pieces


def _kernels_for(logits: Tensor) -> Kernels | None:
    ours = logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.stride(-1) == 1
    return kernels() if ours else None
