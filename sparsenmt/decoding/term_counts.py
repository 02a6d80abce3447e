"""The terms of a glossary in translations, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsenmt.data.terminology import stands
from sparsenmt.decoding.translate import TranslatedLine

_NAMED = 5  # lines whose numbers are told


@dataclass
class TermCounts:
    """Terms whose source stands in a line, and those whose target does not stand in its translation.

    Args:
        lines: the first lines, numbered from 1, with a missing term.
    """

    wanted: int = 0
    missing: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, found: TranslatedLine) -> None:
        """Count the terms of a line, or of each of its parts, in the best output."""
        wanted = [(term, part) for part in found.parts or (found,) for term in part.source.terms]
        gone = sum(not stands(term, part.text, part.tokenizer) for term, part in wanted)
        self.merge(len(wanted), gone, [found.source.number + 1] if gone else [])

    def merge(self, wanted: int, missing: int, lines: Sequence[int]) -> None:
        """Add the counts of lines that come after these."""
        self.wanted, self.missing = self.wanted + wanted, self.missing + missing
        self.lines = [*self.lines, *lines][:_NAMED]

    def summary(self) -> str | None:
        """Return the note about them; None: there are none."""
        if not self.wanted:
            return None
        share = f"{self.wanted - self.missing:,} of {self.wanted:,} terms of the glossary stand in the translations"
        if not self.missing:
            return share
        several = "s" if len(self.lines) > 1 else ""
        return f"{share}; they are missing in line{several} {', '.join(map(str, self.lines))}"
