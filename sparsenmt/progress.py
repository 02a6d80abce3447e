"""Progress bars on stderr, with the time left; silent where stderr is no terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm import tqdm

from sparsenmt.errors import printable, printable_lines

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
        yield from tqdm(items, **self._options(what, total, unit))

    def counting(self, what: str, *, total: int | None, unit: str, done: int = 0) -> tqdm[Any]:
        """Return a bar to be advanced by hand, as a context manager."""
        return tqdm(initial=done, **self._options(what, total, unit))

    def _options(self, what: str, total: int | None, unit: str) -> dict[str, Any]:
        return {
            "desc": printable(what),
            "total": total,
            "unit": unit,
            "unit_scale": True,
            "disable": self._disabled,
            "file": sys.stderr,
            "dynamic_ncols": True,
            "leave": False,
        }


def notify(message: str) -> None:
    """Print a note or a warning on stderr, with `printable` lines, above any progress bar that is shown."""
    with tqdm.external_write_mode(file=sys.stderr):
        print(printable_lines(message), file=sys.stderr, flush=True)


@contextmanager
def progress_bar(
    description: str, total: int | None, *, unit: str = "sentence", done: int = 0
) -> Iterator[Callable[[int], object]]:
    """Show a progress bar on stderr; yields a function that is told how many more units are done.

    Args:
        total: None where it is unknown.
        done: units that an earlier run has done.
    """
    bars = Bars(not os.environ.get("TQDM_DISABLE"))
    with bars.counting(description, total=total, unit=unit, done=done) as bar:
        yield bar.update
