"""A pool of unfinished searches, which are merged and continued together.

A few sentences of a batch need many more steps than the others, and a step of few rows takes almost as long as one of
many, as the weights have to be read in any case. So the search over a batch is suspended when few of its sentences are
unfinished, and those of several batches are continued as one search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, Self, TypeVar

from sparsenmt.decoding.strategies import ErrorContext, Results

SHARE = 8
"""A search is suspended when 1 / SHARE of its sentences are unfinished."""


class MergeableSearch(Protocol):
    """A search over a batch that can be suspended and merged with others."""

    def __len__(self) -> int:
        """Unfinished sentences."""
        ...

    @property
    def sentence_numbers(self) -> list[int]:
        """Numbers of the unfinished sentences."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Entries of the memory and tokens so far of each sentence, padding included."""
        ...

    @property
    def can_merge(self) -> bool:
        """True if `merge` is possible in the present state."""
        ...

    def run(self, left: int = 0) -> Results:
        """Search until at most ``left`` sentences are unfinished; return the results of the others."""
        ...

    def merge(self, others: Sequence[Self]) -> Self:
        """Merge with other searches; with none, free the memory of finished sentences."""
        ...


AnySearch = TypeVar("AnySearch", bound=MergeableSearch)


class SearchPool(Generic[AnySearch]):
    """The unfinished searches of a text.

    The keys and values of suspended searches, of the memory and of tokens so far, padding included, never take more
    memory than those of a whole batch.
    """

    def __init__(self, naming: ErrorContext) -> None:
        self._naming = naming
        self._waiting: list[AnySearch] = []
        self._capacity = (0, 0)  # the most entries of a memory, and tokens, that a batch had

    @property
    def waiting(self) -> list[int]:
        """Numbers of the sentences of suspended searches."""
        return [number for search in self._waiting for number in search.sentence_numbers]

    def run(self, search: AnySearch) -> Results:
        """Run a new search; return the results of its finished sentences and of earlier ones."""
        numbers = search.sentence_numbers
        with self._naming(numbers):
            found, rest = _run_until_few(search)
            entries, columns = search.size
            most_entries, most_columns = self._capacity
            self._capacity = max(most_entries, len(numbers) * entries), max(most_columns, len(numbers) * columns)
        return found if rest is None else found | self._wait(rest)

    def finish(self) -> Results:
        """Finish all suspended searches; return their results."""
        if not self._waiting:
            return {}
        with self._naming(self.waiting):
            return self._merged().run()

    def _merged(self) -> AnySearch:
        (first, *others), self._waiting = self._waiting, []
        return first.merge(others)

    def _wait(self, search: AnySearch) -> Results:
        """Suspend a search; if the pool has no capacity for it, first continue the others."""
        found: Results = {}
        if self._waiting and not self._fits(search):
            with self._naming(self.waiting):
                found, rest = _run_until_few(self._merged())
            self._waiting = [] if rest is None else [rest]
        if self._waiting and not self._fits(search):
            found |= self.finish()
        self._waiting.append(search)
        return found

    def _fits(self, search: AnySearch) -> bool:
        """Return True if the suspended searches and this one are no larger than a batch."""
        searches = [*self._waiting, search]
        count, sizes = sum(map(len, searches)), [each.size for each in searches]
        largest = map(max, zip(*sizes, strict=True))
        return all(count * each <= most for each, most in zip(largest, self._capacity, strict=True))


def _run_until_few(search: AnySearch) -> tuple[Results, AnySearch | None]:
    """Run a search until few sentences are unfinished; return the results, and the rest if it can be merged."""
    found = search.run(len(search) // SHARE)
    if not search.can_merge:
        return found | search.run(), None
    return found, search.merge([]) if len(search) else None
