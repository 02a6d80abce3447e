"""What a contrastive test suite is, whatever file it comes from."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from sparsenmt.errors import UserError

FORMATS = ("lines", "distil-lingeval", "lingeval97", "word-sense", "mucow-translation")


@dataclass(frozen=True)
class Item:
    """One decision: the correct target against one or more wrong ones."""

    sentence: int
    """Number of its source in `Suite.sources`."""
    correct: str
    contrastive: tuple[str, ...]
    type: str
    """The phenomenon."""
    place: str
    """Where it stands: file and line."""
    distance: int | None = None
    """Words between the two places that must agree; None: the suite does not say."""
    frequency: int | None = None
    """Of the word that is changed, in the training data of the suite's authors."""
    origin: str | None = None
    """The corpus that the sentence is from."""
    word: str | None = None
    """The ambiguous source word."""
    sense: str | None = None
    domain: str | None = None


@dataclass(frozen=True)
class Suite:
    """A test suite."""

    name: str
    format: str
    sources: tuple[str, ...]
    """In the order of the files. Several items may share one."""
    items: tuple[Item, ...]
    languages: tuple[str, str] | None = None
    """Source and target, where the names of the files tell."""
    notes: tuple[str, ...] = ()
    """What was left out."""

    def only(self, keep: Callable[[Item], bool], *notes: str) -> Suite:
        """The suite with some of its items, and what there is to say about it."""
        return replace(self, items=tuple(filter(keep, self.items)), notes=(*self.notes, *notes))

    def select(self, types: Collection[str], origins: Collection[str]) -> Suite:
        """Only these types, and only these origins; none named: all.

        Raises:
            UserError: there is none of that name.
        """
        chosen = self
        for option, wanted, name in (("--type", types, "type"), ("--origin", origins, "origin")):
            known = sorted({getattr(item, name) for item in self.items} - {None})
            for each in wanted:
                if not known:
                    raise UserError("the suite does not say it of its items", where=option, hint="Leave it out.")
                if each not in known:
                    hint = f"There are: {', '.join(known[:20])}."
                    raise UserError(f"the suite has no '{each}'", where=option, hint=hint)
            if wanted:
                items = tuple(item for item in chosen.items if getattr(item, name) in wanted)
                chosen = replace(chosen, items=items)
        return chosen
