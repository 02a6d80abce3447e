"""Tokenizers with a list of symbols as vocabulary: characters, words between spaces, or bytes."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.text import bounded_batches
from sparsenmt.data.tokenizers.spans import Span, fill_unknown, spans_before_lowercase
from sparsenmt.data.tokenizers.word_counts import LONGEST_WORD, WordCounts
from sparsenmt.data.vocabulary import BOS, EOS, SKIPPED_IDS, SPACE, SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from sparsenmt.storage.files import invalid_file, read_json, write_json
from sparsenmt.storage.records import typed

TABLE_WORDS = 200_000  # distinct words that are counted exactly
_CHARACTERS_A_WORD = 16  # average length of the words in the table, at most


@dataclass(frozen=True)
class _SymbolSettings:
    """The contents of a tokenizer's file."""

    symbols: list[str]
    lowercase: bool
    user_symbols: list[str] = field(default_factory=list)


class _SymbolTokenizer:
    """A tokenizer with a list of symbols; subclasses split a line into symbols and join symbols to a line.

    Args:
        symbols: the symbols after the special tokens, in the order of their ids.
        lowercase: True if text is lowercased before it is looked up.
        user_symbols: the first of the symbols: words that are one symbol each.
    """

    kind: str
    keeps_word_boundaries = True
    _spaces_start_words = True

    def __init__(self, symbols: Sequence[str], *, lowercase: bool, user_symbols: Sequence[str] = ()) -> None:
        self._user_symbols = frozenset(user_symbols)
        self._pieces = [*SPECIAL_TOKENS, *symbols]
        # Special tokens are not looked up: "</s>" in the text is a word.
        self._ids = {symbol: id_ for id_, symbol in enumerate(symbols, start=len(SPECIAL_TOKENS))}
        self._lowercase = lowercase
        self.size = len(self._pieces)
        starts = [not self._spaces_start_words or piece == SPACE for piece in self._pieces]
        self.word_starts: NDArray[np.bool_] = np.array(starts, dtype=np.bool_)
        self.word_starts[[BOS, EOS]] = True

    @classmethod
    def train(cls, options: schema.TokenizerSection, lines: Iterator[str]) -> Self:
        """Keep the most frequent symbols, ties by code point. Memory does not grow with the number of lines."""
        texts = (" ".join(block) for block in bounded_batches(lines, len))
        if options.lowercase:
            texts = (text.lower() for text in texts)
        user_symbols = options.user_symbols
        if user_symbols:
            texts = (" ".join(word for word in text.split(" ") if word not in user_symbols) for text in texts)
        counts = cls._count(texts, options)
        for symbol in user_symbols:  # a user symbol of one character may occur inside words
            del counts[symbol]
        return cls(
            [*user_symbols, *cls._select(counts, options)], lowercase=options.lowercase, user_symbols=user_symbols
        )

    @classmethod
    def load(cls, directory: Path, stem: str) -> Self:
        """Read what `save` wrote."""
        path = directory / f"{stem}.json"
        settings = typed(read_json(path), _SymbolSettings, path, hint="Restore the directory from a copy.")
        return cls(settings.symbols, lowercase=settings.lowercase, user_symbols=settings.user_symbols)

    def encode(self, line: str) -> list[int]:
        if self._lowercase:
            line = line.lower()
        return [self._ids.get(symbol, UNK) for symbol in self._symbols(line)]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def spans(self, line: str) -> list[Span]:
        if not self._lowercase:
            return self._spans(line)
        return spans_before_lowercase(line, self._spans(line.lower()))

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        kept = [int(id_) for id_ in ids if id_ not in SKIPPED_IDS]
        names = [UNKNOWN_SURFACE if id_ == UNK else self._pieces[id_] for id_ in kept]
        return self._join(fill_unknown(kept, names, unknown))

    def pieces(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> list[str]:
        return list(fill_unknown(ids, [self._pieces[int(id_)] for id_ in ids], unknown))

    def save(self, directory: Path, stem: str) -> None:
        settings: dict[str, Any] = {"kind": self.kind, "lowercase": self._lowercase}
        if self._user_symbols:
            settings["user_symbols"] = sorted(self._user_symbols)
        write_json(directory / f"{stem}.json", {**settings, "symbols": self._pieces[len(SPECIAL_TOKENS) :]})

    def required(self, ids: Collection[int]) -> set[int]:
        symbols = {*self._user_symbols, SPACE} & self._ids.keys()
        return {*ids, *(self._ids[symbol] for symbol in symbols)}

    def reduced(self, ids: Sequence[int]) -> Self:
        symbols = [self._pieces[id_] for id_ in ids[len(SPECIAL_TOKENS) :]]
        own = [symbol for symbol in symbols if symbol in self._user_symbols]
        return type(self)(symbols, lowercase=self._lowercase, user_symbols=own)

    def _symbols(self, line: str) -> Iterable[str]:
        raise NotImplementedError

    def _spans(self, line: str) -> list[Span]:
        """The places of the symbols in a line that is lowercased if need be."""
        raise NotImplementedError

    @staticmethod
    def _join(symbols: Iterable[str]) -> str:
        raise NotImplementedError

    @classmethod
    def _count(cls, texts: Iterable[str], options: schema.TokenizerSection) -> Counter[str]:
        """Count the symbols."""
        raise NotImplementedError

    @classmethod
    def _select(cls, counts: Counter[str], options: schema.TokenizerSection) -> list[str]:
        """The symbols to keep, at most as many as `_capacity` allows."""
        return sorted(counts, key=lambda symbol: (-counts[symbol], symbol))[: _capacity(options)]


def _capacity(options: schema.TokenizerSection) -> int:
    """The number of symbols that a vocabulary can hold beside special tokens and user symbols; UserError if it is 0."""
    taken = len(SPECIAL_TOKENS) + len(options.user_symbols)
    if options.vocabulary_size <= taken:
        others = " and the user symbols" if options.user_symbols else ""
        raise UserError(
            f"a vocabulary of {options.vocabulary_size} has no entries left beside the special tokens{others}",
            where="data.tokenizer.vocabulary_size",
            hint=f"It must be at least {taken + 1}.",
        )
    return options.vocabulary_size - taken


class WordTokenizer(_SymbolTokenizer):
    """Words between runs of spaces (U+0020 and nothing else).

    If the text has more than `TABLE_WORDS` distinct words, counts of rare words may be too low (see `word_counts`).
    Words of more than `LONGEST_WORD` characters are never in the vocabulary.
    """

    kind = "word"
    _spaces_start_words = False  # each symbol is a word

    def _symbols(self, line: str) -> Iterable[str]:
        return filter(None, line.split(" "))

    def _spans(self, line: str) -> list[Span]:
        return [found.span() for found in re.finditer("[^ ]+", line)]

    @staticmethod
    def _join(symbols: Iterable[str]) -> str:
        return " ".join(symbols)

    @classmethod
    def _count(cls, texts: Iterable[str], options: schema.TokenizerSection) -> Counter[str]:
        words = max(TABLE_WORDS, 2 * options.vocabulary_size)
        counts = WordCounts(words=words, characters=words * _CHARACTERS_A_WORD)
        for text in texts:
            counts.add((word for word in text.split(" ") if word and len(word) <= LONGEST_WORD), len(text))
        return Counter(dict(counts.most_frequent_first()))


class CharTokenizer(_SymbolTokenizer):
    """Characters. A space is the symbol U+2581 and belongs to the following word."""

    kind = "char"

    def _symbols(self, line: str) -> Iterable[str]:
        if not self._user_symbols:
            return line.replace(" ", SPACE)
        words = ((word,) if word in self._user_symbols else word.replace(" ", SPACE) for word in _with_spaces(line))
        return chain.from_iterable(words)

    def _spans(self, line: str) -> list[Span]:
        return list(pairwise(accumulate(map(len, self._symbols(line)), initial=0)))

    @staticmethod
    def _join(symbols: Iterable[str]) -> str:
        return "".join(symbols).replace(SPACE, " ")

    @classmethod
    def _count(cls, texts: Iterable[str], options: schema.TokenizerSection) -> Counter[str]:
        counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
        for text in texts:
            code_points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
            found = np.bincount(code_points)
            counts[: len(found)] += found
        counts[ord(SPACE)] += counts[ord(" ")]
        counts[ord(" ")] = 0
        return Counter({chr(point): int(counts[point]) for point in np.flatnonzero(counts).tolist()})

    @classmethod
    def _select(cls, counts: Counter[str], options: schema.TokenizerSection) -> list[str]:
        # The space comes first whatever its count: it marks the beginnings of words.
        others = Counter({symbol: count for symbol, count in counts.items() if symbol != SPACE})
        frequent = super()._select(others, options)
        wanted = options.character_coverage * others.total()
        kept: list[str] = []
        covered = 0
        for symbol in frequent:
            if covered >= wanted:
                break
            kept.append(symbol)
            covered += others[symbol]
        return [SPACE, *kept][: _capacity(options)]


_BYTES = [SPACE if byte == 32 else chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>" for byte in range(256)]
"""The names of bytes: printable ASCII characters, and hexadecimal numbers."""


class ByteTokenizer(_SymbolTokenizer):
    """The bytes of UTF-8; nothing is unknown. A space belongs to the following word.

    Bytes that are not valid UTF-8 are decoded to U+FFFD, and so is a line feed, which no line contains.
    """

    kind = "byte"

    def __init__(self, symbols: Sequence[str], *, lowercase: bool, user_symbols: Sequence[str] = ()) -> None:
        super().__init__(symbols, lowercase=lowercase, user_symbols=user_symbols)
        self._first = self.size - len(_BYTES)
        """The id of byte 0."""

    @classmethod
    def train(cls, options: schema.TokenizerSection, lines: Iterator[str]) -> Self:
        """Take all bytes, whatever the text; an empty text is an error of ``lines``."""
        next(lines, None)
        symbols = [*options.user_symbols, *_BYTES]
        return cls(symbols, lowercase=options.lowercase, user_symbols=options.user_symbols)

    @classmethod
    def load(cls, directory: Path, stem: str) -> Self:
        """Read what `save` wrote."""
        loaded = super().load(directory, stem)
        if loaded._pieces[loaded._first :] != _BYTES:
            raise invalid_file(directory / f"{stem}.json", "not a vocabulary of bytes")
        return loaded

    def required(self, ids: Collection[int]) -> set[int]:
        raise ValueError("its tokens are the bytes, all of which are needed")

    def encode(self, line: str) -> list[int]:
        if self._lowercase:
            line = line.lower()
        return [id_ for part in self._parts(line) for id_ in self._part_ids(part)]

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        kept = [int(id_) for id_ in ids if id_ not in SKIPPED_IDS]
        texts = fill_unknown(kept, [UNKNOWN_SURFACE if id_ == UNK else self._pieces[id_] for id_ in kept], unknown)
        encoded = (
            text.encode() if id_ < self._first else bytes([id_ - self._first])
            for id_, text in zip(kept, texts, strict=True)
        )
        return b"".join(encoded).decode("utf-8", errors="replace").replace("\n", "\ufffd")

    def _parts(self, line: str) -> list[str]:
        """Divide a line into user symbols and the text between them."""
        return _with_spaces(line) if self._user_symbols else [line]

    def _part_ids(self, part: str) -> Iterable[int]:
        if part in self._user_symbols:
            return (self._ids[part],)
        return (byte + self._first for byte in part.encode("utf-8", errors="replace"))

    def _spans(self, line: str) -> list[Span]:
        """The places of the symbols; all bytes of a character have its place."""
        spans: list[Span] = []
        start = 0
        for part in self._parts(line):
            if part in self._user_symbols:
                spans.append((start, start + len(part)))
            else:
                places = enumerate(part, start)
                spans += [(at, at + 1) for at, character in places for _ in character.encode("utf-8", errors="replace")]
            start += len(part)
        return spans


def _with_spaces(line: str) -> list[str]:
    """The words of a line and the spaces between them."""
    return re.split("( )", line)
