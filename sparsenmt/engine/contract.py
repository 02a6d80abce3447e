"""The contract between searches and the engine that runs a trained model: eight members, none of which is optional.

An engine without a kernel for something computes the same by PyTorch's operators.
Shapes: B sentences, J hypotheses a sentence that are still open, N rows (hypotheses), T tokens, D model dimension,
V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sparsenmt.engine.search_cache import SearchCache
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Encoded, Source

Continuations = tuple[Tensor, Tensor, Tensor]
"""Log-probabilities, numbers of hypotheses in 0..J-1, tokens: (B, width), best first. Minus infinity: there is none.
NaN, in all of a sentence: a logit of an open hypothesis (its score is above minus infinity) is NaN."""


@dataclass(frozen=True)
class NextRules:
    """The tokens that may come next.

    Args:
        tokens: (B * J, T) so far, without the first one that the decoder reads; negative before a row begins.
        forbid: (logits (N, U), tokens (N, T)) -> the logits, minus infinity at forbidden tokens, in place. U tokens
            are numbered as the logits are, the special ones first.
        never: all that it forbids, where that is the same for all hypotheses; None: it is not.
        pick: logits (B, U) -> the number (B) of one token, drawn or chosen, for one hypothesis a sentence; None: the
            most probable tokens come next.
        required: (B) the token that comes next in each sentence, whatever is forbidden, with its log-probability;
            negative: any may. ``never`` is None then. None: any may in every sentence.
    """

    tokens: Tensor
    forbid: Callable[[Tensor, Tensor], Tensor]
    never: Sequence[int] | None = None
    pick: Callable[[Tensor], Tensor] | None = None
    required: Tensor | None = None


def require(logits: Tensor, required: Tensor, forbid: Callable[[Tensor], Tensor]) -> Tensor:
    """Forbid tokens in place, and all others where one is required, which keeps its value.

    Args:
        logits: (N, U).
        required: (N) tokens; negative: none.
    """
    rows = (required >= 0).nonzero().squeeze(1)
    own = logits[rows, required[rows]]
    logits = forbid(logits)
    logits[rows] = -math.inf
    logits[rows, required[rows]] = own
    return logits


@dataclass(frozen=True)
class GreedyRules:
    """The token that the decoder reads first, the one that ends an output, and those that are never generated.

    The last are in every shortlist, before all others.
    """

    begin: int
    end: int
    never: Sequence[int]


@dataclass(frozen=True)
class GreedyOutputs:
    """The outputs of B sentences.

    Args:
        tokens: (B, T) integers.
        lengths: (B) how many of them are a sentence's, the end included; 0: its scores are not finite.
        scores: (B) log-probabilities.
    """

    tokens: Tensor
    lengths: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Searches:
    """The way in which searches are best run.

    Args:
        at_once: searches that are best run side by side in this process.
        whole: True if `Engine.search` with shortlists is one call, and not as many as there are steps.
    """

    at_once: int = 1
    whole: bool = False


class Engine(Protocol):
    """A trained model as searches, forced decoding and reports use it."""

    @property
    def searches(self) -> Searches:
        """The number of searches that are best run side by side, and their form."""
        ...

    def encode(self, source: Source, *, exits: Sequence[int] | None = None, compact: bool = False) -> Encoded:
        """Run the encoder once; of a language model, `Source.none` gives the empty memory.

        Args:
            exits: depths whose memories are returned; None: the deepest trained one.
            compact: drop what filters close, where that is exact.
        """
        ...

    def new_cache(
        self,
        memory: Memory,
        *,
        exits: Sequence[int] | None = None,
        allowed: Tensor | None = None,
        segment_memory: int | None = None,
        at_once: bool = False,
    ) -> SearchCache:
        """Make the cache of a search.

        Args:
            exits: the one decoder depth that runs; None: the deepest trained one.
            allowed: (B, V) bool, the tokens of each sentence's shortlist; None: all tokens.
            segment_memory: of a language model, another number of positions to keep than its own.
            at_once: `step` will be given whole outputs, from the first token to the last; nothing is kept.
        """
        ...

    def step(self, tokens: Tensor, cache: SearchCache) -> Tensor:
        """tokens (N, T), which follow those of earlier calls -> hidden states (N, T, D)."""
        ...

    def next_tokens(
        self, states: Tensor, scores: Tensor, cache: SearchCache, rules: NextRules, width: int
    ) -> Continuations:
        """Find the best continuations of every sentence.

        Args:
            states: (B * J, D) after the last tokens.
            scores: (B, J) log-probabilities so far, minus infinity: closed.
            width: continuations of each sentence, of all its hypotheses together.
        """
        ...

    def search(self, cache: SearchCache, limits: Tensor, rules: GreedyRules) -> GreedyOutputs:
        """Extend the output of every sentence by its most probable token until it ends.

        Args:
            cache: a new one.
            limits: (B) the most tokens of each output, at least 1.
        """
        ...

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        ...

    def release(self) -> None:
        """Release the memory that searches leave for the next one."""
        ...
