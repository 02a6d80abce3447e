"""Suites in JSON: a list of entries with a source, a reference and ``errors``, each with a contrastive translation.

LingEval97 (Sennrich 2017): every error is a decision of its own, with its type, distance and frequency.
ContraWSD (Rios Gonzales et al. 2017) and MuCoW's scoring suites (Raganato et al. 2019), which have ``ambig word`` and
``sense``: an entry is one decision, and the reference must beat all its contrastive translations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.data.text import read_whole
from sparsenmt.errors import UserError
from sparsenmt.evaluation.contrast.items import Item, Suite

_MOST_CHARACTERS = 100_000_000
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBERED = re.compile(r"[.:]\d+$")  # "newstest2009.1": the test set and the sentence
_LANGUAGES = re.compile(r"([a-z]{2,3})-([a-z]{2,3})\.")
_FREQUENCY = "frequency of sense/ambig word"  # ContraWSD: "... in wmt16": "120/4500"
_LAYOUT = "Every entry is an object with source, reference and errors, every error one with contrastive and type."


def read_entries(path: Path, layout: str | None = None) -> Suite:
    """Read a suite in JSON, plain or gzipped.

    Args:
        layout: "lingeval97" or "word-sense"; None: word-sense if the first entry has an ambiguous word.

    Raises:
        UserError: the file is not JSON, or not a list of such entries; file, line and key are named.
    """
    text = read_whole(path, _MOST_CHARACTERS)
    sources: list[str] = []
    items: list[Item] = []
    empty = 0
    for number, (line, value) in enumerate(list_elements(text, str(path)), start=1):
        entry = _Object(value, f"{path}, line {line:,}", f"entry {number:,}")
        if layout is None:
            layout = "word-sense" if "ambig word" in entry.fields() else "lingeval97"
        sources.append(entry.text("source"))
        found = list(_decisions(entry, layout, len(sources) - 1))
        empty += not found
        items += found
    notes = [f"{empty:,} of {len(sources):,} entries have no errors, and are left out"] if empty else []
    match = _LANGUAGES.match(path.name)
    pair = (match[1], match[2]) if match else None
    return Suite(str(path), layout or "lingeval97", tuple(sources), tuple(items), pair, tuple(notes))


def as_entries(suite: Suite) -> list[dict[str, Any]]:
    """Write the suite as entries in the word-sense layout, one per item, for `read_entries`."""
    entries = []
    for item in suite.items:
        details = _known(distance=item.distance, frequency=item.frequency)
        entry = {
            "source": suite.sources[item.sentence],
            "reference": item.correct,
            "ambig word": item.word or "",
            "sense": item.sense or "",
            "errors": [{"contrastive": text, "type": item.type, **details} for text in item.contrastive],
        }
        entries.append({**entry, **_known(origin=item.origin, domain=item.domain)})
    return entries


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def list_elements(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """Parse a JSON list; yields each element with the line that it begins in.

    Raises:
        UserError: the text is not a JSON list; the line is named.
    """
    decoder = json.JSONDecoder()
    place = _skip(text, 0)
    if text[place : place + 1] != "[":
        line = text.count("\n", 0, place) + 1
        raise UserError("the file is not a JSON list", where=f"{name}, line {line:,}", hint=_LAYOUT)
    place = _skip(text, place + 1)
    line, counted = 1, 0
    sign = ","
    if text[place : place + 1] == "]":
        sign, place = "]", _skip(text, place + 1)
    while sign == ",":
        line += text.count("\n", counted, place)
        counted = place
        try:
            value, end = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            where = f"{name}, line {error.lineno:,}"
            raise UserError(f"this is not JSON: {error.msg}", where=where, hint="Fix it there.") from None
        except (ValueError, RecursionError):
            raise UserError("this JSON cannot be read", where=f"{name}, line {line:,}", hint=_LAYOUT) from None
        yield line, value
        place = _skip(text, end)
        sign = text[place : place + 1]
        place = _skip(text, place + 1)
    if sign != "]" or place < len(text):
        line = text.count("\n", 0, place) + 1
        raise UserError(
            "this is not JSON: the list does not end here"
            if sign == "]"
            else "this is not JSON: ',' or ']' is expected",
            where=f"{name}, line {line:,}",
            hint="Fix it there; the file may have been truncated while it was copied.",
        )


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


@dataclass(frozen=True)
class _Object:
    """A JSON object with its place, which error messages name."""

    value: Any
    where: str
    key: str

    def error(self, key: str, message: str) -> UserError:
        place = f"{self.key}.{key}" if key else self.key
        return UserError(message, where=f"{self.where}: {place}", hint=_LAYOUT)

    def fields(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.error("", "this must be an object")
        return self.value

    def text(self, key: str) -> str:
        found = self.optional_text(key)
        if found is None:
            raise self.error(key, "the key is missing")
        return found

    def optional_text(self, key: str) -> str | None:
        found = self.fields().get(key)
        if found is None:
            return None
        if not isinstance(found, str):
            raise self.error(key, "this must be a text")
        try:
            found.encode("utf-8")
        except UnicodeEncodeError:
            raise self.error(key, "this is not valid Unicode: half of a surrogate pair") from None
        return found

    def number(self, key: str) -> int | None:
        found = self.fields().get(key)
        if isinstance(found, str) and found.isdecimal() and len(found) < 10:
            found = int(found)  # LingEval97 writes some of its zeros as "0"
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self.error(key, "this must be an integer of at least 0")
        return found

    def objects(self, key: str) -> list[_Object]:
        if key not in self.fields():
            raise self.error(key, "the key is missing")
        found = self.fields()[key]
        if not isinstance(found, list):
            raise self.error(key, "this must be a list")
        return [_Object(each, self.where, f"{self.key}.{key}[{i}]") for i, each in enumerate(found)]


def _decisions(entry: _Object, layout: str, sentence: int) -> Iterator[Item]:
    reference, origin = entry.text("reference"), entry.optional_text("origin")
    errors = entry.objects("errors")
    wrong = [error.text("contrastive") for error in errors]
    place = f"{entry.where}: {entry.key}"
    if layout == "lingeval97":
        origin = origin and _NUMBERED.sub("", origin)
        for error, text in zip(errors, wrong, strict=True):
            distance, frequency = error.number("distance"), error.number("frequency")
            yield Item(sentence, reference, (text,), error.text("type"), place, distance, frequency, origin)
    elif errors:
        yield Item(
            sentence,
            reference,
            tuple(wrong),
            errors[0].optional_text("type") or "word_sense",
            place,
            errors[0].number("distance"),
            _frequency(entry, errors[0]),
            origin,
            word=entry.optional_text("ambig word") or None,
            sense=entry.optional_text("sense") or None,
            domain=entry.optional_text("domain"),
        )


def _frequency(entry: _Object, error: _Object) -> int | None:
    """Read the frequency of the sense: the first of the two numbers that ContraWSD gives."""
    key = next((key for key in entry.fields() if key.startswith(_FREQUENCY)), None)
    if key is None:
        return error.number("frequency")
    number = entry.text(key).partition("/")[0].strip()
    if not number.isdecimal():
        raise entry.error(key, "this must be two integers with a slash between them")
    return int(number)
