"""The merges of byte-pair encoding that make a token (Sennrich et al. 2016).

A token is made of its characters by the same merges wherever it comes out: no merge across its ends took place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def tokens_on_the_way(symbols: Sequence[str], priority: Callable[[str, str], float | None]) -> set[str]:
    """The tokens that byte-pair encoding makes of symbols, those that are merged further and the last ones.

    Args:
        priority: of two neighbours; the highest is merged first, the leftmost of equal ones; None: never.
    """
    left, found = list(symbols), set(symbols)
    while True:
        ranked = [
            (value, -place)
            for place in range(len(left) - 1)
            if (value := priority(left[place], left[place + 1])) is not None
        ]
        if not ranked:
            return found
        place = -max(ranked)[1]
        left[place : place + 2] = [left[place] + left[place + 1]]
        found.add(left[place])
