"""The terms of a glossary in translations, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsenmt.data.terminology import stands
from sparsenmt.decoding.translate import TranslatedLine
from sparsenmt.decoding.unusual_text import FoundLines


@dataclass
class TermCounts:
    """Terms whose source stands in a line, and those whose target does not stand in its translation.

    Args:
        lines: those with a missing term.
    """

    wanted: int = 0
    missing: int = 0
    lines: FoundLines = field(default_factory=FoundLines)

    def add(self, found: TranslatedLine) -> None:
        """Count the terms of a line, or of each of its parts, in the best output."""
        wanted = [(term, part) for part in found.parts or (found,) for term in part.source.terms]
        gone = sum(not stands(term, part.text, part.tokenizer) for term, part in wanted)
        self.wanted, self.missing = self.wanted + len(wanted), self.missing + gone
        if gone:
            self.lines.add(1, [found.source.number + 1])

    def merge(self, wanted: int, missing: int, lines: Mapping[str, Any]) -> None:
        """Add the counts of lines that come after these."""
        self.wanted, self.missing = self.wanted + wanted, self.missing + missing
        self.lines.add(**lines)

    def summary(self) -> str | None:
        """Return the note about them; None: there are none."""
        if not self.wanted:
            return None
        share = f"{self.wanted - self.missing:,} of {self.wanted:,} terms of the glossary stand in the translations"
        if not self.missing:
            return share
        return f"{share}; they are missing in {self.lines.numbers}"
