"""The decoding strategies by name. Imports nothing heavy: recipes and the command line offer these names.

A new strategy is one file with a class that implements `sparsenmt.decoding.strategies.Strategy`, and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StrategyEntry:
    """The location of a strategy, and the facts that are needed before it is imported.

    Args:
        path: ``module:class``, imported when the strategy is used.
        random: the output depends on random numbers.
    """

    path: str
    random: bool = False


STRATEGIES: dict[str, StrategyEntry] = {
    "beam": StrategyEntry("sparsenmt.decoding.beam:BeamSearch"),
    "greedy": StrategyEntry("sparsenmt.decoding.greedy:GreedySearch"),
    "sample": StrategyEntry("sparsenmt.decoding.sampling:SamplingSearch", random=True),
}
