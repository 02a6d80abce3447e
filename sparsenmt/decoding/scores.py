"""From logits to candidates, and from log-probabilities to scores, for all decoding strategies.

Shapes: N rows (hypotheses), V vocabulary, T tokens so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.native.kernels import MOST_IN_ORDER, Kernels, kernels
from sparsenmt.recipe.schema import Decoding


@dataclass(frozen=True)
class Hypothesis:
    """A finished output.

    Args:
        tokens: without BOS and the last EOS; in a language model's output of several lines an EOS ends each line.
        log_probability: sum over the tokens and EOS, in nats.
        score: log-probability over length penalty; hypotheses are ranked by it.
        ended: True if it ended with EOS, False if it was truncated at the maximum length.
        copied: the texts that replace its unknown tokens, in order; empty: nothing was copied.
    """

    tokens: list[int]
    log_probability: float
    score: float
    ended: bool
    copied: tuple[str, ...] = ()


Lengths = TypeVar("Lengths", float, Tensor)


def length_penalty(lengths: Lengths, options: Decoding) -> Lengths:
    """The divisor of log-probabilities (Wu et al. 2016, Eq. 14).

    lengths: numbers of tokens, EOS and a given prefix included: a number or a floating tensor.
    """
    base, alpha = lengths, options.alpha if options.length_penalty != "none" else 0.0
    if options.length_penalty == "gnmt":
        base = (5.0 + lengths) / 6.0
    penalty: Lengths = base**alpha
    return penalty


def hypothesis_of(tokens: list[int], log_probability: float, options: Decoding, prefix: int = 0) -> Hypothesis:
    """The hypothesis of generated tokens, of which the last may be EOS, after a prefix of this length."""
    ended = tokens[-1] == EOS and (options.max_lines == 1 or tokens.count(EOS) == options.max_lines)
    score = log_probability / length_penalty(prefix + len(tokens), options)
    return Hypothesis(tokens[:-1] if ended else tokens, log_probability, score, ended)


def maximum_length(source_length: int, options: Decoding, positions: int) -> int:
    """The maximum number of tokens of an output, EOS included.

    source_length: tokens of the source, EOS excluded.
    """
    wanted = int(min(options.max_length_factor * source_length, positions)) + options.max_length_offset
    return min(max(wanted, options.min_length + 1, 1), positions)


def never(options: Decoding) -> tuple[int, ...]:
    """Tokens that are never generated."""
    return (PAD, BOS, UNK) if options.unknown == "forbid" else (PAD, BOS)


def ending(picked: Tensor, tokens: Tensor, options: Decoding) -> Tensor:
    """Return (N) bool: the rows whose output ends with the tokens ``picked`` (N) after ``tokens`` (N, T)."""
    ends = picked == EOS
    return ends if options.max_lines == 1 else ends & _in_last_line(tokens, options)


def _in_last_line(tokens: Tensor, options: Decoding) -> Tensor:
    """(N, T) -> (N) bool: the next end of a line is that of the output."""
    if options.max_lines == 0:
        return tokens.new_zeros(len(tokens), dtype=torch.bool)
    return (tokens == EOS).sum(1) >= options.max_lines - 1


def forbidden(options: Decoding, length: int) -> tuple[int, ...] | None:
    """Return the tokens that no hypothesis may have after ``length`` tokens; None: hypotheses differ in them."""
    if options.no_repeat_ngram:
        return None
    if length >= options.min_length:
        return never(options)
    return (*never(options), EOS) if options.max_lines == 1 else None


def forbid(logits: Tensor, tokens: Tensor, options: Decoding) -> Tensor:
    """Set the logits of forbidden tokens to -inf, in place.

    Call it after `log_normalizer`, so that probabilities are the model's. A hypothesis for which all other tokens are
    forbidden can end, even below the minimum length; and a line can always end where another one follows.

    Args:
        logits: (N, V).
        tokens: (N, T) generated so far, without BOS; negative before a row begins.
    """
    gone = never(options)
    for token in gone:
        logits[:, token] = -math.inf
    length, n = tokens.shape[1], options.no_repeat_ngram
    too_short, repeats = length < options.min_length, 0 < n <= length
    if not (too_short or repeats):
        return logits
    end = logits[:, EOS].clone()
    if repeats:
        windows = tokens.unfold(1, n, 1)  # (N, T - n + 1, n)
        suffix = tokens[:, length - n + 1 :]  # (N, n - 1)
        same = (windows[:, :, : n - 1] == suffix[:, None, :]).all(-1)  # (N, T - n + 1)
        same &= windows[:, :, n - 1] >= 0  # negative before a row begins
        # Tokens that are not banned write to EOS's place, whose logit is restored below.
        logits.scatter_(1, torch.where(same, windows[:, :, n - 1], EOS), -math.inf)
    if too_short:
        last = None if options.max_lines == 1 else _in_last_line(tokens, options)
        logits[:, EOS] = -math.inf if last is None else end.masked_fill(last, -math.inf)
        # Where no n-gram was forbidden, some other token is left.
        if not repeats and logits.shape[1] > len((*gone, EOS)):
            return logits
        others = logits.amax(1) > -math.inf
        end = end.masked_fill(others if last is None else others & last, -math.inf)
    logits[:, EOS] = end
    return logits


_BLOCK = 2**19  # logits whose exponentials a CPU computes at a time: they fit the cache of a core


def log_normalizer(logits: Tensor) -> Tensor:
    """(N, V) -> (N, 1): log of the sum of exponentials, without materialising a softmax."""
    found = _kernels_for(logits, "log sums")
    if found is not None:
        return found.log_sums(logits)
    if logits.device.type != "cpu":
        return logits.logsumexp(-1, keepdim=True)
    rows = max(_BLOCK // logits.shape[1], 1)
    return torch.cat([block.logsumexp(-1, keepdim=True) for block in logits.split(rows)])


def best_tokens(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(N, V) -> logits and tokens (N, width), best first."""
    found = _kernels_for(logits, "best tokens") if width <= MOST_IN_ORDER else None
    if found is not None:
        return found.best(logits, width)
    values, tokens = logits.topk(width, -1)
    return values, tokens


def candidates(
    logits: Tensor, tokens: Tensor, scores: Tensor, width: int, options: Decoding
) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of every sentence, best first. B sentences, J hypotheses each.

    Args:
        logits: (B * J, V); they are overwritten.
        tokens: (B * J, T) so far, without BOS.
        scores: (B, J) log-probabilities so far.

    Returns:
        log-probabilities, parents in 0..J-1, and tokens; (B, width). Minus infinity: there is none. NaN, in all of a
        sentence: a logit of an open hypothesis (its score is above minus infinity) is NaN.
    """
    (sentences, opened), vocabulary = scores.shape, logits.shape[1]
    gone = forbidden(options, tokens.shape[1])
    if (
        gone is not None
        and scores.dtype == logits.dtype
        and max(width, len(gone) + 1) <= min(vocabulary, MOST_IN_ORDER)
    ):
        found = _kernels_for(logits, "candidates")
        if found is not None:
            return found.candidates(logits, scores.contiguous(), gone, width)
    normalizer = log_normalizer(logits)
    each = min(width, vocabulary)
    values, best_of_rows = best_tokens(forbid(logits, tokens, options), each)
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


def _kernels_for(logits: Tensor, kind: str) -> Kernels | None:
    suitable = logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.stride(-1) == 1
    found = kernels() if suitable else None
    return found if found is not None and found.faster(kind, logits.shape[-1]) else None
