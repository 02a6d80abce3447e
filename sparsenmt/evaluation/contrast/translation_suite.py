"""Contrastive pairs from a MuCoW translation suite (Raganato et al. 2019; WMT 2019).

``XX-YY.text.txt`` holds sources, ``.ref.txt`` references, and ``.key.txt`` for each line an id, the corpus, the
ambiguous word, the words of the right sense and those of a wrong one. ``.domain.txt`` marks each pair of word and sense
as frequent in the shared task's data ("in") or not ("out").

A contrastive translation is the reference with the first word of the right sense replaced, once for each word of the
wrong sense, as in MuCoW's scoring suites; the reference must beat all of them. Case is kept. Articles and endings are
not adapted: among several forms of the wrong word, one that fits decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsenmt.data.text import read_lines, read_parallel
from sparsenmt.errors import UserError
from sparsenmt.evaluation.contrast.items import Item, Suite

_KEY = re.compile(r"\.key\.txt(\.gz)?$")
_COLUMNS = 5
_MOST_WORDS = 1000  # of a sense: for each one the reference is searched, and a translation made
_HINT = "A line holds id, corpus, word, right sense and wrong sense, with tabs between them."


def find_key(path: Path) -> Path | None:
    """Find the key of a suite by its own path, by the prefix of its name, or in a folder that holds one."""
    if _KEY.search(path.name):
        return path
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if _KEY.search(each.name))
        return found[0] if len(found) == 1 else None
    return _find_part(path, path.name, "key")


def read_translation_suite(key: Path) -> Suite:
    """Make pairs from the suite with this key.

    Raises:
        UserError: a file is missing or not aligned, or a line of the key is malformed.
    """
    text, reference = (_required_part(key, part) for part in ("text", "ref"))
    domains = _domains(key)
    sources: list[str] = []
    items: list[Item] = []
    lost = 0
    rows = read_parallel([key, text, reference])
    for number, (entry, source, correct) in enumerate(rows, start=1):
        where = f"{key}, line {number:,}"
        columns = entry.split("\t")
        if len(columns) != _COLUMNS or not all(column.strip() for column in columns):
            raise UserError(f"{len(columns)} columns, or an empty one", where=where, hint=_HINT)
        _, corpus, word, right, wrong = columns
        sources.append(source)
        senses = right.split(), wrong.split()
        if max(map(len, senses)) > _MOST_WORDS:
            raise UserError(f"a sense has more than {_MOST_WORDS} words", where=where, hint=_HINT)
        contrastive = swap(correct, *senses)
        if not contrastive:
            lost += 1
            continue
        item = Item(number - 1, correct, contrastive, "word_sense", where, origin=corpus, word=word, sense=right)
        items.append(replace(item, domain=domains.get((word, right))))
    notes = [f"{lost:,} of {len(sources):,} lines are left out: the reference has no word of the right sense"]
    parts = key.name.partition(".")[0].split("-")
    pair = (parts[0], parts[1]) if len(parts) == 2 else None
    return Suite(str(key), "mucow-translation", tuple(sources), tuple(items), pair, tuple(notes if lost else []))


def swap(reference: str, right: Sequence[str], wrong: Sequence[str]) -> tuple[str, ...]:
    """Replace the first word of the right sense in the reference, once for each word of the wrong sense.

    Returns nothing if the reference has no word of ``right``. Parts of words and of hyphenated compounds do not count.
    """
    longest = sorted(right, key=len, reverse=True)
    match = re.search(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest))})(?![\w-])", reference, re.IGNORECASE)
    if match is None:
        return ()
    own = {word.lower() for word in right}
    chosen = dict.fromkeys(_like(match[0], word) for word in wrong if word.lower() not in own)
    return tuple(f"{reference[: match.start()]}{word}{reference[match.end() :]}" for word in chosen)


def _like(old: str, new: str) -> str:
    """Return the new word in the case of the old one."""
    if len(old) > 1 and old.isupper():
        return new.upper()
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


def _find_part(beside: Path, stem: str, part: str) -> Path | None:
    """Find the file of a part of the suite, gzipped or not."""
    near = (beside.with_name(f"{stem}.{part}.txt{suffix}") for suffix in ("", ".gz"))
    return next((each for each in near if each.is_file()), None)


def _required_part(key: Path, part: str) -> Path:
    stem = _KEY.sub("", key.name)
    found = _find_part(key, stem, part)
    if found is None:
        missing = key.with_name(f"{stem}.{part}.txt")
        hint = "It consists of text, ref and key, line-aligned."
        raise UserError("the suite has no such file", where=str(missing), hint=hint, missing=missing)
    return found


def _domains(key: Path) -> dict[tuple[str, str], str]:
    """Read (word, sense) -> "in" or "out"; empty if the suite has no such file."""
    found = _find_part(key, _KEY.sub("", key.name), "domain")
    if found is None:
        return {}
    domains = {}
    for number, line in enumerate(read_lines(found), start=1):
        columns = line.split("\t")
        if len(columns) < 3:
            raise UserError(
                f"{len(columns)} columns instead of at least 3",
                where=f"{found}, line {number:,}",
                hint="A line begins with word, sense and domain, with tabs between them.",
            )
        domains[columns[0], columns[1]] = columns[2]
    return domains
