"""The n-grams of translations that are also in the references, and those that one system matches more often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

NGram = tuple[str, ...]
LONGEST = 4
"""Words of the longest n-grams."""


def ngrams(words: Sequence[str]) -> Iterator[NGram]:
    """Yield the n-grams of a sentence, from 1 to `LONGEST` words."""
    for size in range(1, LONGEST + 1):
        yield from (tuple(words[i : i + size]) for i in range(len(words) - size + 1))


def matched_ngrams(references: Iterable[Sequence[str]], translations: Iterable[Sequence[str]]) -> Counter[NGram]:
    """Count the n-grams of translations that their references have, at most as often as there (Papineni et al. 2002).

    Args:
        references, translations: equally many sentences, in words.
    """
    found = Counter[NGram]()
    for reference, translation in zip(references, translations, strict=True):
        found.update(Counter(ngrams(reference)) & Counter(ngrams(translation)))
    return found


def most_different(first: Counter[NGram], second: Counter[NGram], count: int) -> list[NGram]:
    """Return n-grams that the first system matches more often, by smoothed share, the most telling first.

    The share is ``(a + 1) / (a + b + 2)`` of a matches of the first and b of the second (compare-mt, Neubig et al.
    2019); of equal ones the longer, then the first in the alphabet.
    """
    gains = [each for each in first if first[each] > second[each]]
    share = {each: (first[each] + 1) / (first[each] + second[each] + 2) for each in gains}
    return sorted(gains, key=lambda each: (-share[each], -len(each), each))[:count]
