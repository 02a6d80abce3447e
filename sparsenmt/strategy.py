"""The decoding strategies by name. Imports nothing heavy: recipes and the command line offer these names.

A new strategy is one file with a class that implements ``sparsenmt.decoding.strategies.Strategy``, and one line here; a
plugin registers its own with `register_strategy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sparsenmt.plugins.table import EntryTable, calling_module

S = TypeVar("S", bound=type[Any])


@dataclass(frozen=True)
class StrategyEntry:
    """The location of a strategy, and the facts that are needed before it is imported.

    Args:
        path: ``module:class``, imported when the strategy is used.
        random: the output depends on random numbers.
        target: of a plugin, the class itself.
    """

    path: str
    random: bool = False
    target: type[Any] | None = None


STRATEGIES: EntryTable[StrategyEntry] = EntryTable(
    "strategy",
    {
        "beam": StrategyEntry("sparsenmt.decoding.beam:BeamSearch"),
        "greedy": StrategyEntry("sparsenmt.decoding.greedy:GreedySearch"),
        "sample": StrategyEntry("sparsenmt.decoding.sampling:SamplingSearch", random=True),
        "speculative": StrategyEntry("sparsenmt.decoding.speculative:SpeculativeSearch"),
        "early_exit": StrategyEntry("sparsenmt.decoding.early_exit:EarlyExitSearch"),
    },
    __name__,
    "the decoding strategy '{}'".format,
)


def register_strategy(name: str, *, random: bool = False) -> Callable[[S], S]:
    """Decorate a class that implements ``sparsenmt.decoding.strategies.Strategy`` to register it under a name.

    The class gets the name as its attribute ``name``.

    Args:
        random: the output depends on random numbers.

    Raises:
        ValueError: another module has registered the name, or it is that of a strategy of the package.
    """
    origin = calling_module()

    def add(strategy: S) -> S:
        path = f"{origin.module}:{getattr(strategy, '__qualname__', strategy)}"
        STRATEGIES.register(name, StrategyEntry(path, random, strategy), strategy, origin)
        strategy.name = name
        return strategy

    return add
