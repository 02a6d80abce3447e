"""Marian's vocabularies: SentencePiece models (`.spm`), and words or its tokens with their numbers (`.yml`, `.json`).

Marian's ids are those of the file, with `</s>` and `<unk>` anywhere; this program's begin with its four special tokens.
Shapes: V tokens of this program, U of Marian.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from torch import Tensor

from sparsenmt.data.tokenizers.frame import TAG
from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.symbol_tokenizers import WordTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE, SPECIAL_TOKENS, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.foreign_files import check_tokens, read_content
from sparsenmt.storage.files import without_mark

_MOST_BYTES = 1 << 28
_AGAIN = "Copy the vocabulary again from where the model comes from."
_FIRST = len(SPECIAL_TOKENS)
_MOST_NUMBER, _SHOWN = 10**9, 80
_WORD = r"""
    (?: "(?P<double>(?:[^"\\]|\\.)*)"
      | '(?P<single>(?:[^']|'')*)'
      | (?P<plain> (?: [^-?:\ \t,\[\]{}#&*!|>'"%@`] | [-?:](?![\ \t]|\Z) )
                   (?: [^:\ \t] | [\ \t]+(?![\ \t#]|:[\ \t]|:?\Z) | :(?![\ \t]|\Z) )* ) )"""
_NUMBER = r"""["']?(?P<number>[0-9]{1,9})["']?[\ \t]*(?:[\ \t]\#.*)?"""
_ENTRY = re.compile(rf"[\ ]*{_WORD}[\ \t]*:[\ \t]+{_NUMBER}", re.VERBOSE)
_LONG_WORD = re.compile(rf"[\ ]*\?[\ \t]+{_WORD}[\ \t]*", re.VERBOSE)
_LONG_NUMBER = re.compile(rf"[\ ]*:[\ \t]+{_NUMBER}", re.VERBOSE)
_ESCAPE = re.compile(r"\\(?:(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8})|(.))")
_ESCAPES = dict(zip("0abtnvfre \"'/\\N_LP", "\0\a\b\t\n\v\f\r\x1b \"'/\\\x85\xa0\u2028\u2029", strict=True))
"""Characters that a letter after a backslash stands for."""


@dataclass(frozen=True)
class MarianVocabulary:
    """A vocabulary in this program's order."""

    path: Path
    tokenizer: Tokenizer
    ids: tuple[int, ...]  # (V) Marian's id of each token; -1: it has no such token
    size: int  # U
    languages: Mapping[str, int]  # code -> id of the tag `>>code<<`, in this program

    def same_as(self, other: MarianVocabulary) -> bool:
        """Return True if both divide a text into the same tokens."""
        mine, theirs = self.tokenizer, other.tokenizer
        if isinstance(mine, PieceTokenizer) and isinstance(theirs, PieceTokenizer) and mine.model != theirs.model:
            return False
        return mine.pieces(range(mine.size)) == theirs.pieces(range(theirs.size))

    def rows(self, table: Tensor, *, missing: float = 0.0) -> Tensor:
        """Put the rows (U, ...) of a table into this program's order; what Marian does not have is ``missing``."""
        ids = torch.tensor(self.ids)
        found = table[ids.clamp_min(0)]
        found[ids < 0] = missing
        return found


def read_vocabulary(path: Path, side: str) -> MarianVocabulary:
    """Read a vocabulary.

    Args:
        side: ``source`` or ``target``: a `.yml` of SentencePiece's tokens belongs to the file ``SIDE.spm`` beside it.

    Raises:
        UserError: it is of another kind, damaged, or has no end of a sentence or no unknown token.
    """
    if path.suffix not in (".spm", ".model", ".yml", ".yaml", ".json"):
        raise UserError(
            f"a vocabulary of the kind `{path.suffix}` cannot be imported",
            where=str(path),
            hint="Import SentencePiece models (.spm), or words with numbers (.yml, .json); factors are not read.",
        )
    data = without_mark(read_content(path, _MOST_BYTES), str(path))
    return parse_vocabulary(path, data, path.with_name(f"{side}.spm"))


def parse_vocabulary(path: Path, data: bytes, pieces: bytes | Path = b"") -> MarianVocabulary:
    """Read the contents of a vocabulary.

    Args:
        path: of the file, which tells the kind.
        pieces: for a table of SentencePiece's tokens, its model, or where that lies.

    Raises:
        UserError: it is damaged, or has no end of a sentence or no unknown token.
    """
    try:
        if path.suffix in (".spm", ".model"):
            return _pieces(path, data)
        names = _names(data)
        check_tokens(names, path)
        if sum(name.startswith(SPACE) for name in names) > len(names) // 20:
            return _pieces(path, read_content(pieces, _MOST_BYTES) if isinstance(pieces, Path) else pieces, names)
        ids = _order(names)
        words = WordTokenizer([names[id_] for id_ in ids[_FIRST:]], lowercase=False)
        return MarianVocabulary(path, words, ids, len(names), {})
    except (ValueError, RuntimeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"not a vocabulary of Marian, or a damaged one: {reason}", where=str(path), hint=_AGAIN
        ) from None


def _order(names: Sequence[str]) -> tuple[int, ...]:
    """Marian's ids in this program's order. Marian has no padding, and begins a target with a vector of zeros."""
    end, unknown = (names.index(SPECIAL_TOKENS[id_]) if SPECIAL_TOKENS[id_] in names else -1 for id_ in (EOS, UNK))
    if min(end, unknown) < 0:
        raise ValueError("it has no </s> or no <unk>")
    return (-1, unknown, -1, end, *(id_ for id_ in range(len(names)) if id_ not in (end, unknown)))


def _pieces(path: Path, model: bytes, names: Sequence[str] = ()) -> MarianVocabulary:
    """The tokens of a SentencePiece model, with ids of their own if there are ``names``."""
    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
    own = range(processor.get_piece_size())
    control = {processor.id_to_piece(id_) for id_ in own if processor.is_control(id_)}
    names = names or [processor.id_to_piece(id_) for id_ in own]
    ids = _order(names)
    named = [names[id_] for id_ in ids[_FIRST:]]
    tags = {found[1]: id_ for id_, name in enumerate(named, _FIRST) if (found := TAG.fullmatch(name))}
    markers = [id_ for id_, name in enumerate(named, _FIRST) if name in control or id_ in tags.values()]
    named = [f"{name}_" if name in SPECIAL_TOKENS else name for name in named]
    return MarianVocabulary(path, PieceTokenizer(model, named, markers), ids, len(names), tags)


def _names(data: bytes) -> list[str]:
    """The words of a `.yml` or `.json` in the order of their numbers. All words are texts: `no` and `007`, too."""
    text = data.decode()
    rows = _json_rows(text) if text.lstrip().startswith("{") else _yaml_rows(text)
    words: dict[str, str] = {}  # and where they stand
    places: dict[int, str] = {}
    names: dict[int, str] = {}
    for where, word, number in rows:
        if word in words:
            raise ValueError(f"{where}: {word!r} has a number already ({words[word]})")
        if number in places:
            raise ValueError(f"{where}: the number {number:,} is taken already ({places[number]})")
        words[word] = places[number] = where
        names[number] = word
    if not names or max(names) >= len(names):
        missing = next(number for number in range(len(names) + 1) if number not in names)
        raise ValueError(f"its words do not have the numbers from 0 on: {missing:,} is missing")
    return [names[number] for number in range(len(names))]


def _json_rows(text: str) -> Iterator[tuple[str, str, int]]:
    """The entries of a JSON object (place, word, number)."""
    pairs = json.loads(text, object_pairs_hook=list)
    for place, (word, number) in enumerate(pairs, 1):
        if type(number) is not int or not 0 <= number < _MOST_NUMBER:
            raise ValueError(f"entry {place:,}: {word!r} has no number")
        yield f"entry {place:,}", word, number


def _yaml_rows(text: str) -> Iterator[tuple[str, str, int]]:
    r"""The lines ``word: number`` of a map in YAML (place, word, number), as yaml-cpp writes and reads them.

    Only "\n" ends a line there. Words that look like something else stand in double quotes, with escapes; all
    characters but some of the control characters stand for themselves, also those that end a line, or must not occur,
    in the YAML of other programs. A long word stands in a line of its own, ``? word``, with ``: number`` in the next.
    """
    key: str | None = None  # of such a word
    for count, line in enumerate(text.split("\n"), 1):
        line, where = line.removesuffix("\r"), f"line {count:,}"
        if key is not None:
            number = _LONG_NUMBER.fullmatch(line)
            if number is None:
                raise ValueError(f"{where}: no number of the word before it")
            yield where, key, int(number[1])
            key = None
        elif line.strip(" \t") in ("", "---", "...") or line.startswith("#"):
            continue
        elif found := _ENTRY.fullmatch(line):
            yield where, _word(found, where), int(found["number"])
        elif found := _LONG_WORD.fullmatch(line):
            key = _word(found, where)
        else:
            raise ValueError(f"{where} is not a word with its number: {line[:_SHOWN]!r}")
    if key is not None:
        raise ValueError("it ends after a word without a number")


def _word(found: re.Match[str], where: str) -> str:
    """The text of a word that `_WORD` matched."""
    if (plain := found["plain"]) is not None:
        return plain
    if (single := found["single"]) is not None:
        return single.replace("''", "'")

    def character(escape: re.Match[str]) -> str:
        digits, name = escape[1], escape[2]
        code = int(digits[1:], 16) if digits else 0
        if (digits is None and name not in _ESCAPES) or code > sys.maxunicode:
            raise ValueError(f"{where}: an unknown escape, {escape[0]!r}")
        return chr(code) if digits else _ESCAPES[name]

    return _ESCAPE.sub(character, found["double"])
