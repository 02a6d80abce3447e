"""Marian's lexical shortlists: `lex.*.bin`, and text with lines of a target word, a source word and a probability.

A binary file has six numbers of 64 bits (magic, checksum, number of the most frequent tokens that always may come out,
most translations of a token, source tokens and one more, translations of all), where the translations of each source
token begin (64 bits), and the translations (32 bits). Ids are Marian's, which are ordered by frequency.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.vocabulary import EOS, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.foreign_files import read_content
from sparsenmt.importers.marian_vocabularies import MarianVocabulary
from sparsenmt.storage.files import regular_file, without_mark

_MAGIC = 0xF11A48D5013417F5
_HEADER = 48
_MOST_BYTES = 1 << 28
_USUAL = (100, 100, 0.0)  # first, best and least probability, where the settings do not say
_NONE = ("NULL", "<eps>")
Vocabularies = tuple[MarianVocabulary, MarianVocabulary]


def read_marian_shortlist(path: Path, settings: Sequence[Any], vocabularies: Vocabularies) -> Shortlist:
    """Read a shortlist.

    Args:
        settings: what follows the name of the file in Marian's settings: of text, the numbers `first` and `best`, and
            the least probability.
        vocabularies: of source and target.

    Raises:
        UserError: it is missing, truncated, damaged, or belongs to other vocabularies.
    """
    if not path.is_file():
        raise UserError(
            "there is no such shortlist",
            where=str(path),
            hint="Copy the whole model directory, or remove `shortlist:` from its settings.",
        )
    data = read_content(path, _MOST_BYTES)
    try:
        if len(data) >= 8 and int.from_bytes(data[:8], "little") == _MAGIC:
            first, translations = _binary(data, vocabularies)
        else:
            first, translations = _text(without_mark(data, str(path)), settings, vocabularies)
    except (ValueError, struct.error) as error:
        raise UserError(
            f"not a shortlist of Marian for this model, or a damaged one: {error}",
            where=str(path),
            hint="Copy the shortlist again from where the model comes from.",
        ) from None
    source, target = vocabularies
    ours = _places(target)
    found = [ours[translations[id_]].tolist() if id_ >= 0 else [] for id_ in source.ids]
    return Shortlist.of(ours[:first].tolist(), found, source.tokenizer, target.tokenizer)


def most_translations(path: Path) -> int:
    """The most translations of a token, which a binary shortlist says; 0 of a text."""
    with open(path, "rb", opener=regular_file) as stream:
        header = stream.read(_HEADER)
    return int.from_bytes(header[24:32], "little") if header[:8] == _MAGIC.to_bytes(8, "little") else 0


def binary_shortlist(shortlist: Shortlist, source_ids: Sequence[int], target_ids: Sequence[int], best: int) -> bytes:
    """The bytes of a shortlist in Marian's format.

    Args:
        source_ids, target_ids: Marian's id of each token; -1: Marian has no such token.
        best: the most translations of a token, as the file says; 0: as many as there are.
    """
    theirs = np.asarray(target_ids, np.int64)
    always = {id_ for id_ in theirs[shortlist.always].tolist() if id_ >= 0}
    first = next(id_ for id_ in range(len(always) + 1) if id_ not in always)
    found: list[list[int]] = [[] for _ in range(max(source_ids) + 1)]
    for id_, (place, translations) in enumerate(zip(source_ids, shortlist.translations(), strict=True)):
        # In Marian the first tokens always come out; any others may wherever there is an end of a sentence.
        others = {id_ for id_ in always if id_ >= first} if id_ == EOS else set()
        if place >= 0:
            own = theirs[translations]
            found[place] = sorted({*own[own >= 0].tolist(), *others})
    ends = np.cumsum([0, *map(len, found)])
    tokens = np.array([id_ for each in found for id_ in each], "<u4").tobytes()
    header = struct.pack("<4Q", first, best or max(map(len, found)), len(ends), int(ends[-1]))
    body = header + ends.astype("<u8").tobytes() + tokens
    return struct.pack("<2Q", _MAGIC, _checksum(body)) + body


def _places(vocabulary: MarianVocabulary) -> NDArray[np.int64]:
    """This program's id of each of Marian's."""
    found = np.zeros(vocabulary.size, np.int64)
    for ours, theirs in enumerate(vocabulary.ids):
        if theirs >= 0:
            found[theirs] = ours
    return found


def _binary(data: bytes, vocabularies: Vocabularies) -> tuple[int, list[NDArray[np.int64]]]:
    """The number of tokens that always may come out, and the translations of each source token."""
    _, checksum, first, _, words, count = struct.unpack("<6Q", data[:_HEADER])
    if words >= 1 << 32 or count >= 1 << 32 or len(data) != _HEADER + 8 * words + 4 * count:
        raise ValueError(f"{len(data):,} bytes are not as many as it says")
    if _checksum(data[16:]) != checksum:
        raise ValueError("its checksum is another one")
    source, target = vocabularies
    begins = np.frombuffer(data, "<u8", words, _HEADER).astype(np.int64)
    tokens = np.frombuffer(data, "<u4", count, _HEADER + 8 * words).astype(np.int64)
    if words != source.size + 1:
        raise ValueError(f"it is of {words - 1:,} source tokens, and the vocabulary has {source.size:,}")
    if first > target.size or (count and int(tokens.max()) >= target.size):
        raise ValueError(f"it has tokens beyond the vocabulary of {target.size:,}")
    if int(begins[0]) != 0 or int(begins[-1]) != count or bool((np.diff(begins) < 0).any()):
        raise ValueError("its lists are not in order")
    return first, np.split(tokens, begins[1:-1])


def _checksum(data: bytes) -> int:
    """Marian's hash of numbers of 64 bits."""
    found, most = 0, (1 << 64) - 1
    for (number,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8]):
        found ^= (number + 0x9E3779B9 + (found << 6) + (found >> 2)) & most
    return found


def _text(data: bytes, settings: Sequence[Any], vocabularies: Vocabularies) -> tuple[int, list[NDArray[np.int64]]]:
    """The same of a text: of each source token, the translations with the largest probabilities."""
    given = [each for each in settings if isinstance(each, (int, float, str)) and not isinstance(each, bool)]
    first, best, least = (float(value) for value in (*given, *_USUAL[len(given) :])[:3])
    if not (0 <= first < 1 << 32 and 0 <= best < 1 << 32):
        raise ValueError(f"the settings say {settings}")
    source, target = vocabularies
    names = [_names(each) for each in (target, source)]
    found: dict[int, dict[int, float]] = {}
    for number, line in enumerate(io.BytesIO(data), 1):
        parts = line.decode().split()
        if not parts:
            continue
        if len(parts) != 3:
            raise ValueError(f"line {number} is not a target word, a source word and a probability")
        if parts[0] in _NONE or parts[1] in _NONE:
            continue
        to, of = (
            own.get(word, each.ids[UNK]) for own, word, each in zip(names, parts[:2], (target, source), strict=True)
        )
        probability = float(parts[2])
        if not 0 <= probability <= 1.001:  # rounded
            raise ValueError(f"the probability of line {number} is {parts[2][:20]}")
        if probability >= least:
            own = found.setdefault(of, {})
            own[to] = max(probability, own.get(to, 0.0))
    if not found:
        raise ValueError("it has no translations")
    translations = []
    for id_ in range(source.size):
        own = found.get(id_, {})
        ordered = sorted(own, key=lambda to: (-own[to], to))[: int(best)]
        translations.append(np.array(ordered, np.int64))
    return min(int(first), target.size), translations


def _names(vocabulary: MarianVocabulary) -> dict[str, int]:
    """Marian's id of each token by its name."""
    names = vocabulary.tokenizer.pieces(range(vocabulary.tokenizer.size))
    return {name: id_ for name, id_ in zip(names, vocabulary.ids, strict=True) if id_ >= 0}
