"""Texts of a page: whatever the data holds becomes visible characters of a bounded length.

HTML is escaped by the templates. Control characters, lone surrogates and signs that change the direction of writing
are shown as escapes (`errors.printable`); the templates isolate texts of data, so that one that is written from right
to left moves nothing beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from sparsenmt.data.vocabulary import SPACE
from sparsenmt.errors import printable, printable_lines
from sparsenmt.report.page.document import MarkedWord

MOST_LETTERS = 1_500
"""Most characters of a text in a page."""
_LONGEST_LISTING = 100_000


def finalized(value: Any) -> Any:
    """Return a value as a template writes it: texts visible and cut, HTML as it is."""
    return shown_text(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def shown_text(text: str) -> str:
    """Return a text with escapes for what is not visible; of a long one, its beginning and the number of the rest."""
    beginning, note = _cut(text, MOST_LETTERS)
    return printable(beginning) + note


def shown_lines(text: str) -> str:
    """Return a listing with its line ends, and escapes for what else is not visible."""
    beginning, note = _cut(text, _LONGEST_LISTING)
    return printable_lines(beginning) + note


def _cut(text: str, most: int) -> tuple[str, str]:
    """Return the beginning of a text, and a note on what follows."""
    rest = len(text) - most
    return (text, "") if rest <= 0 else (text[:most], f" … ({rest:,} more characters: see the JSON)")


@dataclass(frozen=True)
class ShownPart:
    """A part of a text.

    Args:
        marked: True if it differs from another model's output, or if it is dropped.
    """

    text: str
    marked: bool


def marked_parts(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[ShownPart]:
    """Yield the parts of a text, inside and outside of spans [first, end)."""
    beginning, note = _cut(text, MOST_LETTERS)
    at = 0
    for first, end in sorted(spans):
        if at < first < len(beginning):
            yield ShownPart(beginning[at:first], False)
        if max(first, at) < min(end, len(beginning)):
            yield ShownPart(beginning[max(first, at) : end], True)
        at = max(at, end)
    if beginning[at:] or note:
        yield ShownPart(beginning[at:], False)
        yield ShownPart(note, False)


def word_parts(word: MarkedWord) -> tuple[ShownPart, ...]:
    """Return a word as one part, or in turns what is kept and what is dropped of its tokens."""
    gone = [gate == 0 for gate in word.gates]
    if len(set(gone)) < 2:
        return (ShownPart(word.text, bool(gone) and gone[0]),)
    tokens = (word.tokens[0].removeprefix(SPACE), *word.tokens[1:])
    turns = groupby(zip(tokens, gone, strict=True), key=itemgetter(1))
    parts = (ShownPart("".join(token for token, _ in own), dropped) for dropped, own in turns)
    return tuple(part for part in parts if part.text)
