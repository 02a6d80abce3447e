"""Links between the words of a sentence pair, as aligners write them, and the words that tokens belong to.

A line of a file has the links of one pair, ``0-0 1-2``: places of a source and a target word, from 0 (the format of
Pharaoh). ``1?2`` is a possible link, which a gold alignment allows and does not require (Och and Ney 2003).
Shapes: T tokens of a text, N links.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.spans import Span
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.errors import UserError, printable

_LINK = re.compile(r"(\d{1,6})([-?])(\d{1,6})", re.ASCII)
_WORD = re.compile(r"\S+")
Link = tuple[int, int]
"""Places of a source and a target word."""


@dataclass(frozen=True)
class WordLinks:
    """The links of a pair: sure ones, and those that are only possible."""

    sure: tuple[Link, ...] = ()
    possible: tuple[Link, ...] = ()


def parse_links(line: str, where: str, sizes: tuple[int, int] | None = None, unit: str = "words") -> WordLinks:
    """Read the links of a line.

    Args:
        where: file and line, in messages.
        sizes: numbers of source and target words; None: not known.
        unit: what the places count.

    Raises:
        UserError: an item is no link, or leads beyond the words.
    """
    found: dict[str, list[Link]] = {"-": [], "?": []}
    for item in line.split():
        match = _LINK.fullmatch(item)
        link = (int(match[1]), int(match[3])) if match else (-1, -1)
        if match is None or (sizes is not None and not (link[0] < sizes[0] and link[1] < sizes[1])):
            beside = "" if sizes is None else f" in {sizes[0]} source and {sizes[1]} target {unit}"
            raise UserError(
                f"'{printable(item[:40])}' is no pair of places{beside}",
                where=where,
                hint=f"Number the {unit} of both sides from 0, source first, as in `0-0 1-2`.",
            )
        found[match[2]].append(link)
    return WordLinks(tuple(found["-"]), tuple(found["?"]))


@dataclass(frozen=True)
class WordPlaces:
    """The words of a text, and (T) the word of each token; -1: of none, as a space alone."""

    words: tuple[str, ...]
    places: tuple[int, ...]


def words_of(text: str) -> list[str]:
    """Return what stands between spaces."""
    return text.split()


def word_spans(text: str) -> list[Span]:
    """Return the places of the words between spaces."""
    return [match.span() for match in _WORD.finditer(text)]


def places_of_spans(text: str, spans: Sequence[Span], units: Sequence[Span] | None = None) -> WordPlaces:
    """Return the words of a text, and the word of each of its first tokens, whose places in it are given.

    Args:
        units: the places of the words; None: they stand between spaces; of a text without spaces, its tokens are words.
    """
    if units is None and is_unspaced([text]):
        return WordPlaces(tuple(text[begin:end] for begin, end in spans), tuple(range(len(spans))))
    units = word_spans(text) if units is None else units
    starts, places = [begin for begin, _ in units], []
    for begin, end in spans:
        own = next((i for i in range(begin, end) if not text[i].isspace()), None)
        places.append(-1 if own is None else bisect_right(starts, own) - 1)
    return WordPlaces(tuple(text[begin:end] for begin, end in units), tuple(places))


def token_links(links: Iterable[Link], source: WordPlaces, target: WordPlaces) -> NDArray[np.int32]:
    """Return (N, 2) the linked tokens, target first, rising: each token of a word with each of the other word."""

    def tokens(own: WordPlaces) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for token, word in enumerate(own.places):
            found.setdefault(word, []).append(token)
        return found

    of_source, of_target = tokens(source), tokens(target)

    def pairs() -> Iterator[Link]:
        for i, j in links:
            yield from ((t, s) for t in of_target.get(j, ()) for s in of_source.get(i, ()))

    return np.array(sorted(set(pairs())), dtype=np.int32).reshape(-1, 2)
