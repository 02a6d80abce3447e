"""The alignment error rate (Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models").

With links A of a system, sure links S of people, and possible links P, of which the sure ones are some:
precision = |A and P| / |A|, recall = |A and S| / |S|, AER = 1 - (|A and S| + |A and P|) / (|A| + |S|).
If all links are sure, AER is 1 - F1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sparsenmt.data.word_links import Link, WordLinks


@dataclass(frozen=True)
class AlignmentError:
    """Links of a system and of people, counted over all sentences.

    Args:
        sentences: their number.
        links: of the system.
        sure: of people.
        found_sure: links of the system that are sure.
        found_possible: links of the system that are sure or possible.
    """

    sentences: int
    links: int
    sure: int
    found_sure: int
    found_possible: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[Collection[Link], WordLinks]]) -> AlignmentError:
        """Count the links of sentences, each link once."""
        counts = [0] * 5
        for links, gold in pairs:
            own, sure = set(links), set(gold.sure)
            found = (1, len(own), len(sure), len(own & sure), len(own & (sure | set(gold.possible))))
            counts = [a + b for a, b in zip(counts, found, strict=True)]
        return cls(*counts)

    @property
    def rate(self) -> float:
        """AER, from 0 to 1; 0 where there are no links at all."""
        total = self.links + self.sure
        return 1 - (self.found_sure + self.found_possible) / total if total else 0.0

    @property
    def precision(self) -> float:
        """The share of the system's links that are sure or possible; 0 if it has none."""
        return self.found_possible / self.links if self.links else 0.0

    @property
    def recall(self) -> float:
        """The share of the sure links that the system found; 0 if there are none."""
        return self.found_sure / self.sure if self.sure else 0.0
