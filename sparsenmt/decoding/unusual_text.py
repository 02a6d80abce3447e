"""Warnings about texts that are unlike the training text of a model: lines that it does not know, or too long ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.line_tags import unknown_tag
from sparsenmt.data.text import character_count
from sparsenmt.data.text_sides import SIDES, Side, SideTokens
from sparsenmt.data.tokenizers.frame import TAG, begins_with_language
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, unknown_texts
from sparsenmt.data.vocabulary import SPACE, UNK
from sparsenmt.errors import printable
from sparsenmt.process.progress import notify

_NAMED = 5  # lines whose numbers a warning names


@dataclass
class FoundLines:
    """The lines of a kind: their number, and the first ones, numbered from 1."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, count: int, first: Sequence[int]) -> None:
        """Add lines that come after these."""
        self.count, self.first = self.count + count, [*self.first, *first][:_NAMED]

    def describe(self, read: int, what: str) -> str:
        """Return how many of the lines that were read are such lines, and which."""
        lines = f"{self.count:,} of {read:,} lines are" if read > 1 else "the line is"
        return f"{lines} {what} ({self.numbers})"

    @property
    def numbers(self) -> str:
        """The first lines, as in ``lines 3, 5, ...``."""
        more = ", ..." if self.count > len(self.first) else ""
        return f"line{'s' if self.count > 1 else ''} {', '.join(map(str, self.first))}{more}"


class UnusualText:
    """A text, line by line, and what in it is unlike the training text of a model.

    That are lines of which the vocabulary knows less than half: by characters, spaces not counted, as a run of unknown
    characters is one token of SentencePiece, so that a share of tokens would say little. Lines that are longer than
    every one of the training text, or begin with the name of a language, which is text like any other; but not where a
    tag is a token that the model was trained with. Lines that begin with another tag than those of its corpora. And a
    text of the other side's language.
    """

    def __init__(self, bundle: Bundle, side: Side = "source") -> None:
        self._tokenizer: Tokenizer = getattr(bundle.tokenizers, side)
        self._vocabulary = "the model's vocabulary" if bundle.tokenizers.shared else f"the {side} vocabulary"
        languages = {each: getattr(bundle.recipe.data, f"{each}_language") for each in SIDES}
        names = {each: each if code == each else f"{each} ({code})" for each, code in languages.items()}  # the default
        self._side, self._name, self._continues = side, names.pop(side), bundle.recipe.data.is_language_model
        (self._other,) = names.values()
        self._longest = None if bundle.text is None else bundle.text.longest[SIDES.index(side)]
        self._read, self._tags = 0, []
        self._found = {kind: FoundLines() for kind in ("unknown", "long", "named", "tagged")}
        if side == "source" and not self._continues:
            self._tags = list(dict.fromkeys(each.tag_token for each in bundle.recipe.data.train if each.tag_token))
        self._languages = bundle.tokenizers.language_names
        self._tokens = SideTokens(bundle.text, bundle.tokenizers, side)

    def add(self, number: int, ids: Sequence[int], text: str, length: int | None = None) -> bool:
        """Read a line, numbered from 0; return True if it is mostly unknown.

        Args:
            ids: its tokens, with or without special ones.
            length: number of its tokens, special ones not counted, or 0 if it is not to be judged; None: that of ids.
        """
        characters = character_count(text)
        self._read += characters > 0
        self._tokens.add(ids, text)
        if self._longest is not None and (len(ids) if length is None else length) > self._longest:
            self._found["long"].add(1, [number + 1])
        if not self._continues and begins_with_language(text, self._languages):
            # A model without languages may have learned such tags as tokens.
            begin = [] if self._languages else self._tokenizer.pieces(ids[:2])
            if not any(TAG.fullmatch(name.strip(SPACE)) for name in begin):
                self._found["named"].add(1, [number + 1])
        if self._tags and unknown_tag(text, self._tokenizer) is not None:
            self._found["tagged"].add(1, [number + 1])
        if UNK not in ids:
            return False
        if 2 * sum(map(character_count, unknown_texts(self._tokenizer, text))) <= characters:
            return False
        self._found["unknown"].add(1, [number + 1])
        return True

    def as_json(self) -> dict[str, Any]:
        """Return what was counted."""
        found = {kind: asdict(lines) for kind, lines in self._found.items()}
        return {"read": self._read, **found, "tokens": self._tokens.counts}

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the counts of lines that come after these."""
        self._read += other["read"]
        for kind, lines in self._found.items():
            lines.add(**other[kind])
        self._tokens.merge(other["tokens"])

    def warnings(self, text: str = "", *, unknown: bool = True) -> list[str]:
        """Return the warnings about what was read.

        Args:
            text: its name.
            unknown: also of lines that are mostly unknown.
        """
        found, name = [], text and f"{text}: "
        unknowns, long, named, tagged = self._found.values()
        if unknown and unknowns.count:
            what = unknowns.describe(self._read, f"mostly unknown to {self._vocabulary}")
            why = f"another language or script than the model's {self._name}, or swapped sides"
            found.append(f"warning: {name}{what}: {why}")
        if long.count:
            longest = f"{'segment' if self._continues else self._side} of the training text, {self._longest:,} tokens"
            effect = (
                "their outputs may break off or repeat words" if self._side == "source" else "scores may say little"
            )
            what = long.describe(self._read, f"longer than every {longest}")
            found.append(f"warning: {name}{what}: {effect}; {'shorten' if self._continues else 'divide'} such lines")
        if named.count:
            begin = f"{named.numbers} {'begin' if named.count > 1 else 'begins'} with the name of a language"
            rest = (
                "remove it, and give --source-language and --target-language"
                if self._languages
                else "the model has none"
            )
            found.append(f"warning: {name}{begin}, which is read as text: {rest}")
        if tagged.count:
            begin = "begin" if tagged.count > 1 else "begins"
            found.append(
                f"warning: {name}{tagged.numbers} {begin} with a tag that is none of the model's, and is read as "
                f"text: they are {', '.join(self._tags)}"
            )
        if self._tokens.like_other:
            found.append(
                f"warning: {name}the text is like the {self._other} of the training text, not like its {self._name}: "
                "are the sides swapped, or the languages?"
            )
        return found


def warn_of_unusual_lines(
    bundle: Bundle, lines: Iterable[tuple[int, Sequence[int], str, int]], text: str, side: Side
) -> None:
    """Report what is unusual in the lines of one side, given as the arguments of `UnusualText.add`.

    Args:
        text: its name in messages.
    """
    found = UnusualText(bundle, side)
    for line in lines:
        found.add(*line)
    for warning in found.warnings(text):
        notify(warning)


class LostSpaces:
    """The prompts of a language model with spaces that its tokenizer does not keep."""

    def __init__(self) -> None:
        self.found: tuple[int, int, str] | None = None
        """Their number; the number of the first, from 1; and the text that is read in its place."""

    def add(self, number: int, prompt: str, read: str) -> None:
        """Compare a prompt, numbered from 0, with the text that is read."""
        if _spaces(prompt) != _spaces(read):
            self.merge((1, number + 1, read))

    def merge(self, found: tuple[int, int, str] | None) -> None:
        """Add what was found in lines that come after these."""
        if found is not None:
            self.found = found if self.found is None else (self.found[0] + found[0], *self.found[1:])

    def warning(self) -> str | None:
        """Return the warning about them; None if there are none."""
        if self.found is None:
            return None
        count, number, read = self.found
        prompts = "1 prompt has" if count == 1 else f"{count:,} prompts have"
        lost = f"{prompts} spaces that the model's tokenizer does not keep"
        return f"warning: {lost}: line {number} is read as '{printable(read)}'"


def _spaces(text: str) -> list[int]:
    """The lengths of the spaces of a text: before the first word, after each."""
    return [len(run) for run in re.split("[^ ]+", text)]
