"""The contrastive test suite and its items, independent of the file format."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from sparsenmt.errors import UserError

FORMATS = ("lines", "distil-lingeval", "lingeval97", "word-sense", "mucow-translation")


@dataclass(frozen=True)
class Item:
    """One decision: the correct target against one or more incorrect ones.

    Args:
        sentence: index of the source in `Suite.sources`.
        type: the phenomenon.
        place: file and line.
        distance: words between the two places that must agree; None if the suite does not say.
        frequency: of the changed word, in the training data of the suite's authors.
        origin: corpus of the sentence.
        word: the ambiguous source word.
    """

    sentence: int
    correct: str
    contrastive: tuple[str, ...]
    type: str
    place: str
    distance: int | None = None
    frequency: int | None = None
    origin: str | None = None
    word: str | None = None
    sense: str | None = None
    domain: str | None = None


@dataclass(frozen=True)
class Suite:
    """A test suite.

    Args:
        sources: in the order of the files; several items may share one.
        languages: source and target language, if the file names tell.
        notes: remarks on items that were left out.
    """

    name: str
    format: str
    sources: tuple[str, ...]
    items: tuple[Item, ...]
    languages: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()

    def select(self, types: Collection[str], origins: Collection[str]) -> Suite:
        """Return the suite with only these types and origins; empty collections keep all.

        Raises:
            UserError: the suite has no such type or origin.
        """
        chosen = self
        for option, wanted, name in (("--type", types, "type"), ("--origin", origins, "origin")):
            known = sorted({getattr(item, name) for item in self.items} - {None})
            for each in wanted:
                if not known:
                    hint = "Leave the option out."
                    raise UserError(f"the items of the suite have no {name}", where=option, hint=hint)
                if each not in known:
                    hint = f"There are: {', '.join(known[:20])}."
                    raise UserError(f"the suite has no '{each}'", where=option, hint=hint)
            if wanted:
                chosen = replace(chosen, items=tuple(item for item in chosen.items if getattr(item, name) in wanted))
        return chosen
