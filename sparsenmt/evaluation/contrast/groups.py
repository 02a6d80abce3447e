"""Items by type, distance, frequency, origin and sense.

Bins are those of LingEval97's own evaluation: every distance up to 15, then the rest; frequencies by powers of ten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsenmt.evaluation.contrast.items import Item

LAST_DISTANCE = 15
_FREQUENCIES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)  # the last of each bin


@dataclass(frozen=True)
class ItemGroup:
    """Items with a common property.

    Args:
        keys: the values of `Grouping.keys`.
        members: indices of the items.
    """

    keys: tuple[str | None, ...]
    members: tuple[int, ...]


@dataclass(frozen=True)
class Grouping:
    """All groups by one criterion, in the order of reports."""

    name: str
    keys: tuple[str, ...]
    groups: tuple[ItemGroup, ...]


def distance_bin(distance: int) -> tuple[int, str]:
    """Order and name."""
    return (distance, str(distance)) if distance <= LAST_DISTANCE else (LAST_DISTANCE + 1, f">{LAST_DISTANCE}")


def frequency_bin(frequency: int) -> tuple[int, str]:
    """Order and name."""
    place = bisect_left(_FREQUENCIES, frequency)
    if place == len(_FREQUENCIES):
        return place, f">{_FREQUENCIES[-1]}"
    last = _FREQUENCIES[place]
    first = _FREQUENCIES[place - 1] + 1 if place else 0
    return place, str(last) if first == last else f"{first}-{last}"


_Sort = tuple[int | str, ...]
_Key = tuple[_Sort, tuple[str | None, ...]]
"""The sort key of a group, and its keys."""


def _of_type(
    bin_: Callable[[int], tuple[int, str]], value: Callable[[Item], int | None]
) -> Callable[[Item], _Key | None]:
    def key(item: Item) -> _Key | None:
        number = value(item)
        if number is None:
            return None
        order, name = bin_(number)
        return (item.type, order), (item.type, name)

    return key


def _named(value: Callable[[Item], str | None]) -> Callable[[Item], _Key | None]:
    def key(item: Item) -> _Key | None:
        name = value(item)
        return None if name is None else ((name,), (name,))

    return key


def _sense(item: Item) -> _Key | None:
    return None if item.word is None else ((item.word, item.sense or ""), (item.word, item.sense))


def group(items: Sequence[Item]) -> list[Grouping]:
    """Group the items by every property that the suite has; the first grouping is all items together."""
    criteria: list[tuple[str, tuple[str, ...], Callable[[Item], _Key | None]]] = [
        ("overall", (), lambda item: ((), ())),
        ("types", ("type",), _named(lambda item: item.type)),
        ("distances", ("type", "distance"), _of_type(distance_bin, lambda item: item.distance)),
        ("frequencies", ("type", "frequency"), _of_type(frequency_bin, lambda item: item.frequency)),
        ("origins", ("origin",), _named(lambda item: item.origin)),
        ("domains", ("domain",), _named(lambda item: item.domain)),
        ("senses", ("word", "sense"), _sense),
    ]
    found = []
    for name, keys, key in criteria:
        members: dict[_Key, list[int]] = {}
        for number, item in enumerate(items):
            own = key(item)
            if own is not None:
                members.setdefault(own, []).append(number)
        if members:
            ordered = sorted(members.items(), key=lambda pair: pair[0][0])
            found.append(Grouping(name, keys, tuple(ItemGroup(own[1], tuple(numbers)) for own, numbers in ordered)))
    return found
