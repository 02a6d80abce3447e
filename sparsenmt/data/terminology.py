"""A glossary: terms of the source language and what they are in the target language, found in source lines.

A term is found where its words stand in the line, whole and in its order; spaces between them do not count, and an
accent may be composed or not. A term that is written in lower case matches any case, another one its own. Scanning from
the left, the longest term is taken, and the next one begins behind it; a term that occurs twice in what is translated
at once counts once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.text import StrPath, read_lines
from sparsenmt.data.tokenizers.spans import Span
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, unknown_texts
from sparsenmt.data.vocabulary import SPACE, UNK
from sparsenmt.data.word_spaces import is_letter, is_symbol, word_spans, written_without_spaces
from sparsenmt.errors import UserError, printable

_COLUMNS = 2
_MARK = "。"


@dataclass(frozen=True)
class WordEdges:
    """The edges of words in a vocabulary.

    Args:
        ends: (V,) tokens with a letter at their end, as `is_letter` says.
        continues: (V,) tokens that start no word and have one at their beginning.
    """

    ends: NDArray[np.bool_]
    continues: NDArray[np.bool_]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordEdges:
        """Find the edges in the vocabulary of a tokenizer."""
        names, starts = tokenizer.pieces(range(tokenizer.size)), tokenizer.word_starts
        ends, begins = ([name != "" and is_letter(name[place]) for name in names] for place in (-1, 0))
        return cls(np.array(ends), np.array(begins) & ~starts)

    def joined(self, before: int, token: int) -> bool:
        """Return True if two tokens, one behind the other, are parts of one word."""
        return bool(self.ends[before] and self.continues[token])


@dataclass(frozen=True)
class Term:
    """A term of a glossary, or its place in a line.

    Args:
        source, target: its texts.
        tokens: of the target.
        bonus: what a token of it adds to the score of an output, in nats; None: the term must stand in the output.
        edges: the edges of the words of the target's vocabulary.
        span: its first and past-the-last character in the line.
    """

    source: str
    target: str
    tokens: tuple[int, ...]
    bonus: float | None = field(compare=False)
    edges: WordEdges = field(repr=False, compare=False)
    span: tuple[int, int] = (0, 0)


class Glossary:
    """The terms of a file with lines ``source term<TAB>target term``; blank lines are skipped.

    Args:
        tokenizer: of the target.
        most: tokens of the longest target term that an output can hold.
        bonus: of every term, see `Term`.
        language: of the target. Where it, or a term's script, has no spaces between words, no term needs one before it.

    Raises:
        UserError: a line does not have two columns, a term has two targets, or an output cannot have a target term.
    """

    def __init__(
        self, path: StrPath, tokenizer: Tokenizer, most: int, bonus: float | None, language: str | None = None
    ) -> None:
        self._terms: dict[tuple[str, ...], dict[tuple[str, ...], Term]] = {}  # by words in lower case, by words
        self._longest, edges = 0, WordEdges.of(tokenizer)
        unspaced = language is not None and written_without_spaces(language)
        segmented = cache(partial(_has_segmented_symbols, tokenizer))  # the whole vocabulary is read
        lines: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number:,}"
            columns = [column.strip() for column in line.rstrip("\r").split("\t")]
            if len(columns) != _COLUMNS or not all(columns):
                hint = "Write a source term, one tab, and its target term."
                raise UserError("the line does not have two columns", where=where, hint=hint)
            behind = (unspaced or is_symbol(columns[1][0])) and not segmented()
            words, tokens = _words(columns[0]), known_tokens(columns[1], tokenizer, most, where, behind=behind)
            if not tokens:
                what = f"the target vocabulary has no token for '{printable(columns[1])}'"
                raise UserError(what, where=where, hint="Write a target term with letters.")
            term = Term(columns[0], columns[1], tokens, bonus, edges)
            same = self._terms.setdefault(tuple(word.lower() for word in words), {})
            if same.setdefault(words, term).target != term.target:
                raise UserError(
                    f"'{printable(term.source)}' has another target in line {lines[words]:,}",
                    where=where,
                    hint="Keep one of the two lines.",
                )
            lines.setdefault(words, number)
            self._longest = max(self._longest, len(words))
        if not lines:
            raise UserError("has no terms", where=str(path), hint="Write one a line: source term, tab, target term.")

    def find(self, text: str) -> tuple[Term, ...]:
        """Return the terms of a line, at each of their places, in their order."""
        spans, found, begin = word_spans(text), list[Term](), 0
        words = _texts(text, spans)
        lower = tuple(word.lower() for word in words)
        while begin < len(words):
            for end in range(min(begin + self._longest, len(words)), begin, -1):
                same = self._terms.get(lower[begin:end], {})
                term = same.get(words[begin:end], same.get(lower[begin:end]))
                if term is not None:
                    found.append(replace(term, span=(spans[begin][0], spans[end - 1][1])))
                    begin = end - 1
                    break
            begin += 1
        return tuple(found)


def stands(term: Term, text: str, tokenizer: Tokenizer) -> bool:
    """Return True if the words of a target term stand in an output, as the tokenizer writes them."""
    wanted, words = _words(tokenizer.decode(term.tokens)), _words(text)
    return any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def terms_behind(terms: Iterable[Term], begin: int) -> tuple[Term, ...]:
    """Return the terms that begin behind the first characters of a line, with their places without these."""
    behind = (term for term in terms if term.span[0] >= begin)
    return tuple(replace(term, span=(term.span[0] - begin, term.span[1] - begin)) for term in behind)


def terms_within(terms: Iterable[Term], begin: int, end: int, *, before: int = 0) -> tuple[Term, ...]:
    """Return the terms that begin in a part of a line, from one character to another: each target once.

    Their places are those in the part, with ``before`` characters before it.
    """
    found: dict[tuple[int, ...], Term] = {}
    for term in terms_behind(terms, begin):
        first, last = term.span
        if first < end - begin:
            found.setdefault(term.tokens, replace(term, span=(first + before, min(last, end - begin) + before)))
    return tuple(found.values())


def known_tokens(text: str, tokenizer: Tokenizer, most: int, where: str, *, behind: bool = False) -> tuple[int, ...]:
    """Return the tokens of a text that an output must contain.

    Args:
        most: of them that an output can hold.
        where: the place of the text, for messages.
        behind: True: those that it has behind other text without a space between, where that makes no other words.

    Raises:
        UserError: the vocabulary does not have its symbols, or it is too long.
    """
    tokens = tuple(_tokens_behind(text, tokenizer) if behind else tokenizer.encode(text))
    if UNK in tokens:
        unknown = printable("".join(unknown_texts(tokenizer, text)))
        hint = "Write it with letters and words of the model's training text."
        raise UserError(f"the target vocabulary does not have '{unknown}'", where=where, hint=hint)
    if len(tokens) > most:
        raise UserError(
            f"{len(tokens):,} tokens are more than an output can have: {most:,}", where=where, hint="Shorten it."
        )
    return tokens


def _tokens_behind(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a text behind a full stop of Japanese; if one token has both, those at a line's start."""
    begins = [begin for begin, _ in tokenizer.spans(_MARK + text)]
    return tokenizer.encode(_MARK + text)[begins.index(1) :] if 1 in begins else tokenizer.encode(text)


def _has_segmented_symbols(tokenizer: Tokenizer) -> bool:
    """Return True if most tokens of several symbols of scripts without spaces start words: their text had spaces."""
    names = [name.removeprefix(SPACE) for name in tokenizer.pieces(range(tokenizer.size))]
    long = [i for i, name in enumerate(names) if len(name) > 1 and all(map(is_symbol, name))]
    return 2 * int(tokenizer.word_starts[long].sum()) > len(long)


def _words(text: str) -> tuple[str, ...]:
    return _texts(text, word_spans(text))


def _texts(text: str, spans: Iterable[Span]) -> tuple[str, ...]:
    """Return the words at these places, composed (NFC): an accent may be a character of its own on one side alone."""
    return tuple(unicodedata.normalize("NFC", text[begin:end]) for begin, end in spans)


def needed_tokens(terms: Sequence[Term]) -> int:
    """Return the number of tokens of the terms that must stand in an output."""
    return sum(len(term.tokens) for term in terms if term.bonus is None)
