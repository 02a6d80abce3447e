"""Filters of training pairs by their text: equal sides, repeated characters, scripts, languages, duplicates."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.languages import base_language
from sparsenmt.recipe.schema import Data, Filters

_CODES = {"nb": "no", "he": "iw", "jv": "jw"}
"""Codes of languages -> those of CLD2, where they differ."""


class TextFilters:
    """The filters of a recipe that decide by the text of a pair alone.

    Args:
        filters: the recipe's.
        languages: codes of source and target.

    Raises:
        UserError: languages are to be recognised, and cannot be.
    """

    def __init__(self, filters: Filters, languages: tuple[str, str]) -> None:
        self._filters = filters
        self._scripts = frozenset(filters.source_scripts), frozenset(filters.target_scripts)
        most = filters.max_repetition
        self._repeated = None if most is None else re.compile(rf"(\S)\1{{{most},}}")
        self._languages = [_code(each) for each in languages]
        self._detector: Any = _detector(languages) if filters.languages else None

    @classmethod
    def of(cls, data: Data) -> TextFilters | None:
        """Make the filters of a recipe's data section; None: it has none of them."""
        return cls(data.filters, (data.source_language, data.target_language)) if data.filters.reads_text else None

    def reason(self, source: str, target: str) -> str | None:
        """The recipe's key of the first filter that leaves out a pair; None: it is kept."""
        sides = source, target
        if self._filters.same_text and "".join(source.split()).lower() == "".join(target.split()).lower():
            return "same_text"
        if self._repeated is not None and any(map(self._repeated.search, sides)):
            return "max_repetition"
        for name, text, scripts in zip(("source_scripts", "target_scripts"), sides, self._scripts, strict=True):
            if scripts and not self._is_in(text, scripts):
                return name
        if self._detector is not None and any(map(self._is_foreign, sides, self._languages)):
            return "languages"
        return None

    def _is_in(self, text: str, scripts: frozenset[str]) -> bool:
        """True if enough letters are in one of the scripts, or there are none."""
        letters = [_script(character) for character in text if character.isalpha()]
        return sum(script in scripts for script in letters) >= self._filters.min_script_share * len(letters)

    def _is_foreign(self, text: str, language: str) -> bool:
        """True if a text is reliably in another language."""
        printable = "".join(character for character in text if character.isprintable())  # CLD2 refuses others
        reliable, _, found = self._detector(printable, hintLanguage=language)
        return bool(reliable) and _code(found[0][1]) != language


class RepeatedPairs:
    """Finds the pairs of a corpus that occurred before, by 64 bits of their hash."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def is_new(self, texts: Sequence[str]) -> bool:
        """Return True at the first occurrence of a pair; pairs with an empty side are left out by another filter."""
        if not all(text.strip(" ") for text in texts):
            return True
        digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest()
        count = len(self._seen)
        self._seen.add(digest)
        return len(self._seen) > count


@lru_cache(1 << 16)
def _script(character: str) -> str:
    """The first word of a letter's Unicode name, such as ``latin``; "" for a letter without a name."""
    name = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    return re.split("[ -]", name.lower(), maxsplit=1)[0]


def _code(language: str) -> str:
    base = base_language(language)
    return _CODES.get(base, base)


def _detector(languages: tuple[str, str]) -> Any:
    """CLD2's function from a text to its language; UserError if the package is missing, or does not have a language."""
    try:
        import pycld2
    except ImportError:
        raise UserError(
            "languages are recognised by the package pycld2, which is not installed",
            where="data.filters.languages",
            hint="Install it (`pip install sparsenmt[languages]`), or leave the filter out.",
        ) from None
    known = {code for _, code in pycld2.LANGUAGES}
    for side, language in zip(("source", "target"), languages, strict=True):
        if _code(language) not in known:
            raise UserError(
                f"{language!r} is no language that CLD2 recognises",
                where=f"data.{side}_language",
                hint="Write its two-letter code, such as `de`, or leave data.filters.languages out.",
            )
    return pycld2.detect
