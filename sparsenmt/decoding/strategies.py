"""The interface of decoding strategies.

Shapes: B sentences.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.terminology import Term
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.engine.contract import Engine
from sparsenmt.errors import UserError
from sparsenmt.model.memory import Memory
from sparsenmt.recipe.schema import Decoding
from sparsenmt.strategy import STRATEGIES

Results = dict[int, list[Hypothesis]]
"""Hypotheses of finished sentences by number, best first; an empty list if the model's scores are NaN or infinite."""

ErrorContext = Callable[[list[int]], AbstractContextManager[None]]
"""Makes a context that names these sentences in the message if the machine runs out of memory."""


@dataclass(frozen=True)
class EncodedBatch:
    """Encoded sentences that are searched together."""

    memory: Memory  # of B sentences, possibly compacted
    limits: Tensor  # (B) maximum lengths, </s> included
    numbers: list[int]  # of the sentences in the results
    line_numbers: list[int]  # of the sentences in the input; of later parts of a line, see `sampling.make_sampler`
    prompts: Tensor | None = None  # (B, P) tokens that a language model continues; None: a translation
    allowed: Tensor | None = None  # (B, V) bool: the tokens of each sentence's shortlist; None: all
    given: tuple[int, ...] = (BOS,)  # what the decoder reads before every output: its start, and a prefix
    decoder_exits: tuple[int, ...] = ()  # the model's trained ones, rising
    required: Tensor | None = None  # (B, P) tokens that each output begins with, negative after the last; None: any
    terms: tuple[tuple[Term, ...], ...] = ()  # of each sentence, what must or should stand in its output

    @functools.cached_property
    def first_tokens(self) -> Tensor:
        """(B, P) what the decoder reads first."""
        begin = self.given if self.prompts is None else (EOS,)  # a text begins after the end of a line
        first = torch.tensor(begin, device=self.limits.device).expand(len(self.limits), -1)
        return first if self.prompts is None else torch.cat([first, self.prompts], 1)

    @property
    def prefix(self) -> int:
        """Number of tokens of an output that are given; the length penalty counts them, and nothing else does."""
        return len(self.given) - 1

    def required_at(self, step: int, rows: Tensor) -> Tensor | None:
        """The token that outputs must have at a step, of these rows (N) of the batch: (N), negative: any; None: any."""
        if self.required is None or step >= self.required.shape[1]:
            return None
        return self.required[rows, step]


class Strategy(ABC):
    """A decoding strategy, by its name in `sparsenmt.strategy.STRATEGIES`."""

    name: ClassVar[str]
    penalizes_length: ClassVar[bool] = False
    """True if the length penalty decides which hypothesis is the best."""
    keeps_prefixes: ClassVar[bool] = False
    """True if outputs begin with `EncodedBatch.required`; of another strategy, target prefixes are refused."""

    def __init__(self, options: Decoding) -> None:
        self.options = options

    @property
    def width(self) -> int:
        """Hypotheses that are searched, and returned at most, for each sentence."""
        return 1

    @property
    def label(self) -> str:
        """The name in tables."""
        return self.name

    def check(self, bundle: Bundle) -> None:  # noqa: B027  # most strategies search every model
        """Check that a model can be searched in this way; UserError if not."""

    @abstractmethod
    def search(self, engine: Engine, batches: Iterable[EncodedBatch], naming: ErrorContext) -> Iterator[Results]:
        """Search batches in order. Yields results as soon as they are known, for every sentence once."""


def strategy_of(options: Decoding) -> Strategy:
    """The strategy that decoding options name.

    Raises:
        UserError: what a plugin registered under this name is no strategy.
    """
    entry = STRATEGIES[options.method]
    module, _, name = entry.path.partition(":")
    made = getattr(importlib.import_module(module), name) if entry.target is None else entry.target
    if not (isinstance(made, type) and issubclass(made, Strategy)) or inspect.isabstract(made):
        raise UserError(
            f"{STRATEGIES.title(options.method)} is no class derived from sparsenmt.decoding.strategies.Strategy, with "
            "a method `search`",
            where=entry.path,
            hint="Derive it from Strategy and write its `search`; or derive it from SingleHypothesisSearch.",
        )
    return made(options)


def check_prefixes(options: Decoding, where: str) -> None:
    """Raise UserError if a strategy does not begin outputs with target prefixes; ``where``: the option with some."""
    if not strategy_of(options).keeps_prefixes:
        raise UserError(
            f"{STRATEGIES.title(options.method)} does not begin outputs with target prefixes",
            where=where,
            hint="Leave it out, or choose another --method.",
        )


def check_complete(options: Decoding, wanted: Iterable[int], known: Container[int]) -> None:
    """Check the sentences that a strategy has results of: every sentence that it was given, once.

    Args:
        wanted: numbers of sentences.
        known: where they must be.

    Raises:
        UserError: one is not there. Strategies of the package give no such results.
    """
    if not all(number in known for number in wanted):
        raise UserError(
            f"{STRATEGIES.title(options.method)} does not give results of every sentence once",
            where=STRATEGIES[options.method].path,
            hint="Correct its `search`: it yields a mapping from the number of a sentence to its hypotheses.",
        )
