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


_Value = str | tuple[int | str, str | None] | None
"""A property of an item: its name, or a sort key and its name; None: the suite does not say."""


def group(items: Sequence[Item]) -> list[Grouping]:
    """Group the items by every property that the suite has; the first grouping is all items together."""
    criteria: list[tuple[str, tuple[str, ...], Callable[[Item], tuple[_Value, ...]]]] = [
        ("overall", (), lambda item: ()),
        ("types", ("type",), lambda item: (item.type,)),
        ("distances", ("type", "distance"), lambda item: (item.type, _binned(distance_bin, item.distance))),
        ("frequencies", ("type", "frequency"), lambda item: (item.type, _binned(frequency_bin, item.frequency))),
        ("origins", ("origin",), lambda item: (item.origin,)),
        ("domains", ("domain",), lambda item: (item.domain,)),
        ("senses", ("word", "sense"), lambda item: (item.word, (item.sense or "", item.sense))),
    ]
    found = []
    for name, keys, values in criteria:
        members: dict[tuple[_Value, ...], list[int]] = {}
        for number, item in enumerate(items):
            own = values(item)
            if None not in own:
                members.setdefault(own, []).append(number)
        if members:
            groups = tuple(ItemGroup(tuple(map(_name, own)), tuple(members[own])) for own in sorted(members))
            found.append(Grouping(name, keys, groups))
    return found


def _binned(bin_: Callable[[int], tuple[int, str]], number: int | None) -> tuple[int, str] | None:
    return None if number is None else bin_(number)


def _name(value: _Value) -> str | None:
    return value[1] if isinstance(value, tuple) else value
