"""Division of a long line into parts that a model can translate: sentences, and parts of sentences that are too long.

A sentence ends at a full stop, question mark or exclamation mark, with closing quotes and brackets behind it, before
white space that no lower-case letter follows; and at such marks of scripts without spaces. A full stop ends none after
an abbreviated title, an initial, a number of two digits at most, or a word with another one inside. A sentence that is
too long is divided at other punctuation, then between words, then inside words, with as much in a part as fits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Sequence

Span = tuple[int, int]
Count = Callable[[Sequence[str]], Sequence[int]]
"""Texts -> their numbers of tokens."""

_CLOSING = r"[\"'”’»)\]」』）]*"
# A run of marks is tried from its beginning alone: from each mark, a long run would take the square of its length.
_END = re.compile(rf"(?:(?<![.!?…؟۔।॥])[.!?…؟۔।॥]+{_CLOSING}(?=\s)|[。！？．]+{_CLOSING})\s*")
_PAUSE = re.compile(r"(?:(?<![,;:–—،؛])[,;:–—،؛]+[\"'”’»)\]]*(?=\s)|[、，；：])\s*")
_SPACE = re.compile(r"\s+")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'„“«])(?:\w|\d{1,2}|\w+(?:\.\w+)+|mrs?|ms|messrs|dr|prof|st|sr|jr|no|nr|art|abs|vgl|hr|fr|mme|mlle)\s?\.$",
    re.IGNORECASE,
)
_LONGEST_ABBREVIATION = 20  # characters that are looked at


def divide(text: str, count: Count, several: int, most: int, together: Sequence[Span] = ()) -> list[Span]:
    """Return the places of the parts of a text, without the white space at their ends.

    Args:
        several: tokens up to which a text of several sentences is left whole.
        most: tokens of the longest sentence that is left whole, at least ``several``.
        together: rising places, such as those of terms, that are divided only if they are longer than that.
    """
    whole = _trimmed(text, 0, len(text))
    if count([text])[0] <= several:
        return [whole]
    inside = {place for begin, end in together for place in range(begin + 1, end)}
    sentences = _cut(text, whole, (end for end in _sentence_ends(text) if end not in inside))
    measured = _measured(text, sentences, count)
    return [part for sentence in measured for part in _shorter(text, sentence, count, most, inside)]


def _sentence_ends(text: str) -> Iterable[int]:
    """The places behind the sentences of a text, and behind the white space that follows them."""
    cased = text != text.lower()
    for found in _END.finditer(text):
        end, mark = found.end(), found.group().rstrip()
        if end < len(text) and cased and text[end].islower():
            continue
        before = text[max(found.start() - _LONGEST_ABBREVIATION, 0) : found.start() + 1]
        if not (mark == "." and _ABBREVIATION.search(before)):
            yield end


def _shorter(
    text: str, part: tuple[Span, int], count: Count, most: int, inside: Container[int], step: int = 0
) -> list[Span]:
    """A part, of which the number of tokens is known, in parts of at most ``most`` tokens.

    Args:
        inside: places where only what is too long by itself is divided.
        step: see `_UNITS`.
    """
    span, tokens = part
    if tokens <= most or span[1] - span[0] <= 1:
        return [span]
    if step == len(_UNITS):
        middle = sum(span) // 2  # or behind it: a combining mark stays with its letter
        middle = next((i for i in range(middle, span[1]) if unicodedata.category(text[i])[0] != "M"), middle)
        halves = _measured(text, _cut(text, span, [middle]), count)
        return [each for half in halves for each in _shorter(text, half, count, most, inside, step)]
    ends = (found.end() for found in _UNITS[step].finditer(text, *span))
    units = _measured(text, _cut(text, span, (end for end in ends if end not in inside)), count)
    packed: list[tuple[Span, int]] = []
    spaces = tokens > sum(own for _, own in units)  # they are tokens, as in a vocabulary of characters
    for (begin, end), own in units:
        joint = own + (packed[-1][1] + spaces * (begin - packed[-1][0][1]) if packed else most + 1)
        if joint <= most:
            packed[-1] = ((packed[-1][0][0], end), joint)
        else:
            packed.append(((begin, end), own))
    return [each for one in packed for each in _shorter(text, one, count, most, inside, step + 1)]


_UNITS = (_PAUSE, _SPACE)
"""Ends of units that parts of a sentence are made of: those between punctuation, then words."""


def _measured(text: str, spans: Sequence[Span], count: Count) -> list[tuple[Span, int]]:
    return list(zip(spans, count([text[slice(*span)] for span in spans]), strict=True))


def _cut(text: str, span: Span, places: Iterable[int]) -> list[Span]:
    """The parts of a span between places, without white space at their ends; none of them is empty."""
    begin, found = span[0], []
    for end in (*(place for place in places if span[0] < place < span[1]), span[1]):
        part = _trimmed(text, begin, end)
        if part[0] < part[1]:
            found.append(part)
        begin = end
    return found


def _trimmed(text: str, begin: int, end: int) -> Span:
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return begin, end
