"""Languages and texts that are written without spaces between words: Japanese, Chinese, Thai and others.

A language says how its text is usually written; only the text itself says if it has spaces between its words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import islice
from typing import Final

from sparsenmt.languages import base_language

UNSPACED_LANGUAGES: Final[frozenset[str]] = frozenset(
    {
        *("ja", "jpn", "zh", "zho", "chi", "cmn", "yue", "wuu", "nan", "lzh"),
        *("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib", "dz", "dzo"),
    }
)
"""ISO 639 codes of languages that are written without spaces between words."""

# Han with its iteration marks and extensions, Hiragana, Katakana (half width, too), Bopomofo, Thai, Lao, Khmer,
# Burmese, Tibetan. Vowel signs count: they are no letters in Unicode's sense, but what a reader sees of a word.
_SYMBOL = re.compile(
    "[\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff\u3100-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U000323af\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1780-\u17d3"
    "\u1000-\u103f\u1050-\u108f\u0f40-\u0fbc]"
)
_GAP = re.compile(rf"(?<={_SYMBOL.pattern})\s+(?={_SYMBOL.pattern})")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(rf"{_SYMBOL.pattern}|(?:(?!{_SYMBOL.pattern})\w)+|[^\w\s]")
_SYMBOLS_TO_A_SPACE = 10
"""Fewer symbols to a space: spaces were put between words (2 symbols in Japanese, 4 in Thai) or between characters."""
_LINES = 2000
"""Lines that `is_unspaced` reads: enough for a share, and quick."""


def written_without_spaces(language: str) -> bool:
    """Return True if text in the language (ISO 639, 2 or 3 letters) usually has no spaces between words."""
    return base_language(language) in UNSPACED_LANGUAGES


def is_unspaced(lines: Iterable[str]) -> bool:
    """Return True if most letters of the text belong to scripts without spaces, and its words have none between them.

    False of Japanese or Thai whose words, or characters, were separated by spaces. The first 2,000 lines count.
    """
    symbols = others = spaces = 0
    for line in islice(lines, _LINES):
        own = len(_SYMBOL.findall(line))
        symbols += own
        others += len(_LETTER.findall(_SYMBOL.sub("", line)))
        spaces += len(line.split()) - 1 if own else 0
    return symbols > others and symbols > _SYMBOLS_TO_A_SPACE * spaces


def is_symbol(character: str) -> bool:
    """Return True for a character of a script without spaces between words."""
    return _SYMBOL.fullmatch(character) is not None


def is_word_part(character: str) -> bool:
    """Return True for a character that words are made of: letters, digits, combining marks, connecting punctuation."""
    category = unicodedata.category(character)
    return category[0] in "LNM" or category == "Pc"


def is_letter(character: str) -> bool:
    """Return True for a character that words with spaces between them are made of."""
    return is_word_part(character) and not is_symbol(character)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the places of words and punctuation marks in a text; a symbol of a script without spaces is a word.

    A combining mark, as the vowel signs of Devanagari, belongs to the word in which it stands.
    """
    found = list[tuple[int, int]]()
    for match in _WORD.finditer(text):
        begin, end = match.span()
        before = text[slice(*found[-1])] if found and found[-1][1] == begin else ""
        if before and _is_mark(text[begin]):
            joined = is_word_part(before[0])
        else:
            joined = before != "" and _is_mark(before[-1]) and all(map(is_letter, (before[0], text[begin])))
        if joined:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M") and not is_symbol(character)


def has_segmented_words(lines: Iterable[str]) -> bool:
    """Return True if spaces were put between the words, or characters, of scripts that are written without them.

    The first 2,000 lines count. Spaces beside other scripts, as around an English name, say nothing.
    """
    symbols = gaps = 0
    for line in islice(lines, _LINES):
        symbols += len(_SYMBOL.findall(line))
        gaps += len(_GAP.findall(line))
    return 0 < symbols <= _SYMBOLS_TO_A_SPACE * gaps
