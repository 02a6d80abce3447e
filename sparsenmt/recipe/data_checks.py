"""What the keys of the recipe's `data` section must be to each other: see `sparsenmt.recipe.checks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sparsenmt.recipe.problems import Complaint, KeyPath
from sparsenmt.recipe.schema import Data, Documents, Filters, Section, TokenizerSection

_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # as in every vocabulary
_RESERVED = "\u2581"  # stands for a space inside pieces


class Finding(NamedTuple):
    """A contradiction: the keys that take part, the one to blame first."""

    keys: tuple[KeyPath, ...]
    complaint: Complaint


def _tokenizer(tokenizer: TokenizerSection, path: KeyPath) -> Iterator[Finding]:
    least = len(_SPECIAL)
    if tokenizer.vocabulary_size <= least:
        yield Finding(
            ((*path, "vocabulary_size"),),
            Complaint(
                f"must be greater than {least}, the number of special pieces",
                "Leave the key out for the default, or write some thousands.",
            ),
        )
    lowest = 0.98
    if tokenizer.kind in ("bpe", "unigram") and tokenizer.character_coverage < lowest:
        yield Finding(
            ((*path, "character_coverage"), (*path, "kind")),
            Complaint(
                f"must be at least {lowest} for SentencePiece's kinds, bpe and unigram",
                "Raise it, or take `data.tokenizer.kind: char`.",
            ),
        )


def _user_symbols(tokenizer: TokenizerSection, path: KeyPath) -> Iterator[Finding]:
    symbols = tokenizer.user_symbols
    for number, symbol in enumerate(symbols):
        complaint = _symbol(symbol, tokenizer.lowercase)
        if complaint is None and symbol in symbols[:number]:
            complaint = Complaint(f"'{symbol}' is there twice", "Remove it here.")
        if complaint is not None:
            yield Finding(((*path, "user_symbols", number),), complaint)
    least = len(_SPECIAL) + len(symbols)
    if len(_SPECIAL) < tokenizer.vocabulary_size <= least:
        yield Finding(
            ((*path, "vocabulary_size"), (*path, "user_symbols")),
            Complaint(
                f"must be greater than {least}, the number of special pieces and user symbols",
                "Leave the key out for the default, or write some thousands.",
            ),
        )


def _symbol(symbol: str, lowercase: bool) -> Complaint | None:
    """Why a symbol could not be found in text, or would be taken for something else."""
    if not symbol:
        return Complaint("is empty", "Write a word, such as `<n>`, or remove it.")
    if symbol in _SPECIAL:
        return Complaint(f"'{symbol}' is a special piece of every vocabulary", "Take another word, such as `<n>`.")
    if any(character.isspace() or character in _RESERVED or not character.isprintable() for character in symbol):
        return Complaint(
            f"{symbol!r} holds white space, U+2581 or a control character",
            "A symbol is one word of the text, between spaces.",
        )
    if lowercase and symbol != symbol.lower():
        return Complaint(
            f"'{symbol}' is never found where text is lowercased", f"Write '{symbol.lower()}', or no `lowercase`."
        )
    return None


def _filters(filters: Filters, path: KeyPath) -> Iterator[Finding]:
    cut, longest = filters.max_source_length, filters.max_length
    if cut is not None and longest is not None and cut > longest:
        yield Finding(
            ((*path, "max_source_length"), (*path, "max_length")),
            Complaint(
                f"sources cut to {cut} pieces would be left out, because `max_length` is {longest}",
                "Raise `data.filters.max_length`, or set it to null.",
            ),
        )


def _data(data: Data, path: KeyPath) -> Iterator[Finding]:
    named = [(corpus.name, index) for index, corpus in enumerate(data.train) if corpus.name is not None]
    first: dict[str, int] = {}
    for name, index in named:
        if first.setdefault(name, index) != index:
            key = (*path, "train", index, "name")
            yield Finding(
                (key,), Complaint(f"two training corpora are named '{name}'", "Give one of them another name.")
            )
    corpora = [((*path, "train", index), corpus) for index, corpus in enumerate(data.train)]
    corpora += [((*path, "dev"), data.dev)] + ([((*path, "test"), data.test)] if data.test else [])
    for place, corpus in corpora:
        if corpus.source == corpus.target:
            yield Finding(
                ((*place, "target"), (*place, "source")),
                Complaint("source and target are the same file", "Name the file of each language."),
            )
    if data.documents is not None:
        yield from _documents(data, data.documents, path)


def _documents(data: Data, documents: Documents, path: KeyPath) -> Iterator[Finding]:
    here = (*path, "documents")
    if all(corpus.documents is None for corpus in data.train):
        yield Finding(
            (here,),
            Complaint(
                "there is nothing to pack: no training corpus names its documents",
                "Write `documents`, the path of their ids, beside `source` and `target`; or remove the section.",
            ),
        )
    complaint = _symbol(documents.separator, data.tokenizer.lowercase)
    if complaint is not None:
        yield Finding(((*here, "separator"), here), complaint)
    longest = documents.max_length
    if documents.source_length is not None and documents.source_length > longest:
        yield Finding(
            ((*here, "source_length"), (*here, "max_length")),
            Complaint(
                f"must be at most `max_length`, {longest}, not {documents.source_length}",
                "Lower it, or leave it out.",
            ),
        )
    cut = data.filters.max_source_length
    if cut is not None and cut < longest - 1:
        yield Finding(
            ((*path, "filters", "max_source_length"), (*here, "max_length")),
            Complaint(
                f"blocks of {longest} pieces would be cut to {cut}",
                "Lower `data.documents.max_length`, or leave `data.filters.max_source_length` out.",
            ),
        )


Check = Callable[[Any, KeyPath], Iterator[Finding]]
DATA_CHECKS: tuple[tuple[type[Section], KeyPath, Check], ...] = (
    (TokenizerSection, ("data", "tokenizer"), _tokenizer),
    (TokenizerSection, ("data", "tokenizer"), _user_symbols),
    (Filters, ("data", "filters"), _filters),
    (Data, ("data",), _data),
)
