"""The accuracy of translated words by group, such as frequency or part of speech: precision, recall and F1.

Within a sentence every word of a translation matches one equal word of the reference that is still free, the first one.
A match counts in the group of the reference's word, an unmatched word in its own (compare-mt, Neubig et al. 2019).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GroupedWords = Sequence[tuple[str, str]]
"""The words of a sentence, each with its group."""


@dataclass(frozen=True)
class WordMatches:
    """The words of a group: matched ones, those of the references, those of the translations."""

    matched: int = 0
    reference: int = 0
    output: int = 0

    @property
    def precision(self) -> float | None:
        """The share of the translations' words that match; None: there are none."""
        return self.matched / self.output if self.output else None

    @property
    def recall(self) -> float | None:
        """The share of the references' words that match; None: there are none."""
        return self.matched / self.reference if self.reference else None

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; None: there are no words."""
        words = self.reference + self.output
        return 2 * self.matched / words if words else None


def word_matches(
    references: Iterable[GroupedWords], translations: Iterable[GroupedWords], groups: Sequence[str]
) -> dict[str, WordMatches]:
    """Count the words of each group, in the order of ``groups``.

    Args:
        references, translations: equally many sentences.
    """
    matched, of_references, of_outputs = Counter[str](), Counter[str](), Counter[str]()
    for reference, translation in zip(references, translations, strict=True):
        free: dict[str, deque[str]] = {}
        for word, group in reference:
            free.setdefault(word, deque()).append(group)
            of_references[group] += 1
        for word, own in translation:
            group = own
            if equal := free.get(word):
                group = equal.popleft()
                matched[group] += 1
            of_outputs[group] += 1
    return {name: WordMatches(matched[name], of_references[name], of_outputs[name]) for name in groups}
