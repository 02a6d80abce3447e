"""The tokens that may come next, and from log-probabilities to scores, for all decoding strategies.

Shapes: N rows (hypotheses), V vocabulary, T tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.engine.contract import NextRules
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
        layers: decoder layers that ran for a token and EOS, on average; None: the same for all.
        utility: the expected one, by which candidates of minimum Bayes risk are ranked; None: the score ranks them.
    """

    tokens: list[int]
    log_probability: float
    score: float
    ended: bool
    copied: tuple[str, ...] = ()
    layers: float | None = None
    utility: float | None = None

    @property
    def scores(self) -> dict[str, Any]:
        """Score (length-normalised), log-probability (natural), number of tokens, and if `</s>` ended it, for JSON.

        With them the decoder layers of a token, where they differ, and the expected utility, where it ranks.
        """
        return {
            "score": self.score,
            "log_probability": self.log_probability,
            "pieces": len(self.tokens),
            "ended": self.ended,
            **({} if self.layers is None else {"decoder_layers": self.layers}),
            **({} if self.utility is None else {"utility": self.utility}),
        }


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
    ended = is_ended(tokens, options)
    score = log_probability / length_penalty(prefix + len(tokens), options)
    return Hypothesis(tokens[:-1] if ended else tokens, log_probability, score, ended)


def is_ended(tokens: list[int], options: Decoding) -> bool:
    """Return True if the last of an output's tokens ends it."""
    return tokens[-1] == EOS and (options.max_lines == 1 or tokens.count(EOS) == options.max_lines)


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

    A hypothesis for which all other tokens are
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


def next_rules(
    tokens: Tensor,
    options: Decoding,
    pick: Callable[[Tensor], Tensor] | None = None,
    required: Tensor | None = None,
) -> NextRules:
    """Return the rules for what follows tokens (N, T); ``pick`` and ``required`` as in `NextRules`."""
    gone = forbidden(options, tokens.shape[1]) if required is None else None
    return NextRules(tokens, partial(forbid, options=options), gone, pick, required)
