"""Tokens that were added to those of a model, such as markers of documents: they are found before a text is divided.

As in Transformers: the leftmost, longest token is taken, and what stands between two of them is divided on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class AddedToken:
    """A token that is one id wherever its text stands.

    Args:
        special: decoding leaves it out.
        lstrip, rstrip: spaces on its left and right belong to it.
        single_word: it is not found inside a word.
    """

    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True)
class TextPart:
    """A part of a line: an added token, or text that has none.

    Args:
        begin: its first character in the line.
        id: of the token; None: text.
    """

    begin: int
    text: str
    id: int | None = None


class AddedTokens:
    """Finds added tokens in a text."""

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        self.tokens = tuple(tokens)
        self.ids = frozenset(token.id for token in tokens)
        self.special = frozenset(token.id for token in tokens if token.special)
        longest = sorted(tokens, key=lambda token: (-len(token.content), token.id))
        self._found = {f"token{place}": token.id for place, token in enumerate(longest)}
        named = (f"(?P<{name}>{_pattern(token)})" for name, token in zip(self._found, longest, strict=True))
        self._pattern = re.compile("|".join(named)) if longest else None

    def sections(self, line: str) -> Iterator[TextPart]:
        """The parts of a line, in order; a line without added tokens is one of text."""
        if self._pattern is None:
            yield TextPart(0, line)
            return
        end = 0
        for found in self._pattern.finditer(line):
            if found.start() > end:
                yield TextPart(end, line[end : found.start()])
            yield TextPart(found.start(), found[0], self._found[str(found.lastgroup)])
            end = found.end()
        if end < len(line) or not end:
            yield TextPart(end, line[end:])

    def renumbered(self, places: Mapping[int, int]) -> list[AddedToken]:
        """The tokens that have a place in another vocabulary, with their ids there; ``places``: old id -> new."""
        return [replace(token, id=places[token.id]) for token in self.tokens if token.id in places]


def _pattern(token: AddedToken) -> str:
    pattern = re.escape(token.content)
    if token.single_word:
        pattern = rf"(?<!\w){pattern}(?!\w)"
    return r"\s*" * token.lstrip + pattern + r"\s*" * token.rstrip
