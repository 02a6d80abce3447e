"""The decoding strategies by name. Imports nothing heavy: recipes and the command line offer these names.

A new strategy is one file with a class that implements `sparsenmt.decoding.strategies.Strategy`, and one line here.
"""

from __future__ import annotations

STRATEGIES: dict[str, str] = {
    "beam": "sparsenmt.decoding.beam:BeamSearch",
    "greedy": "sparsenmt.decoding.greedy:GreedySearch",
    "sample": "sparsenmt.decoding.sampling:SamplingSearch",
}
"""Name -> ``module:class`` of the strategy, imported when it is used."""
