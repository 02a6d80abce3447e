"""Parameters of a test, of which the first run in the fast suite and the others by `make test-all`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def examples(
    names: str | tuple[str, ...],
    values: Iterable[Any],
    *,
    fast: int | Collection[Any] = 1,
    ids: Callable[[Any], object] | None = None,
) -> pytest.MarkDecorator:
    """Return `pytest.mark.parametrize` with all but some values marked thorough.

    Args:
        names: of one parameter, or of several in a tuple.
        values: one for each run of the test.
        fast: how many of the first, or which, are not marked.
        ids: as for `pytest.mark.parametrize`.
    """
    given = []
    for number, value in enumerate(values):
        is_fast = number < fast if isinstance(fast, int) else value in fast
        several = value if isinstance(names, tuple) else (value,)
        given.append(pytest.param(*several, marks=() if is_fast else (pytest.mark.thorough,)))
    assert any(not each.marks for each in given), "one at least runs in the fast suite"
    return pytest.mark.parametrize(names, given, ids=ids)
