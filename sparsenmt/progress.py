"""Progress bars on stderr, with the time left; silent where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")


class Bars:
    """Makes the progress bars of one command.

    Args:
        enabled: False: never show one.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._disabled = not (enabled and sys.stderr.isatty())

    def over(self, items: Iterable[T], what: str, *, total: int | None = None, unit: str = "line") -> Iterator[T]:
        """Pass items through, showing how many went by and how many of ``total`` are left."""
        options = self._options(what, total, unit)
        yield from tqdm(items, **options)

    def counting(self, what: str, *, total: int, unit: str) -> tqdm[Any]:
        """A bar to be advanced by hand, as a context manager."""
        options = self._options(what, total, unit)
        return tqdm(**options)

    def _options(self, what: str, total: int | None, unit: str) -> dict[str, Any]:
        return {
            "desc": what,
            "total": total,
            "unit": unit,
            "unit_scale": True,
            "disable": self._disabled,
            "file": sys.stderr,
            "dynamic_ncols": True,
            "leave": False,
        }
