"""The vocabularies of a model as files that Marian reads, and Marian's ids of their tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.symbol_tokenizers import WordTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import EOS, SPECIAL_TOKENS, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.marian_layout import MarianLayout
from sparsenmt.importers.marian_vocabularies import MarianVocabulary, parse_vocabulary

_LONGEST_KEY = 1000  # characters of a word before a colon; YAML's limit is 1,024
_SIDES = ("source", "target")


@dataclass(frozen=True)
class VocabularyFile:
    """A vocabulary of one side.

    Args:
        name, data: of the file.
        ids: (V) Marian's id of each token; -1: Marian has no such token.
        pieces: a SentencePiece model that divides the text before Marian reads it; b"": Marian does, or its user.
    """

    name: str
    data: bytes
    ids: Sequence[int]
    pieces: bytes = b""


def vocabulary_files(tokenizers: Tokenizers, layout: MarianLayout | None) -> tuple[VocabularyFile, VocabularyFile]:
    """The vocabularies of both sides; one file of a shared one.

    layout: of the files that the model was imported from; they are written again where the tokens are the same.

    Raises:
        UserError: Marian has no such vocabulary.
    """
    one = tokenizers.source is tokenizers.target
    source, target = (
        _file(each, "vocab" if one else side, layout, number)
        for number, (each, side) in enumerate(zip((tokenizers.source, tokenizers.target), _SIDES, strict=True))
    )
    return source, source if one else target


def _file(tokenizer: Tokenizer, stem: str, layout: MarianLayout | None, side: int) -> VocabularyFile:
    name, text = (f"{stem}.spm", None) if layout is None else layout.vocabulary(side)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return VocabularyFile(f"{stem}.spm", tokenizer.model, range(tokenizer.size))
    pieces = tokenizer.model if isinstance(tokenizer, PieceTokenizer) else b""
    if text is not None:
        found = parse_vocabulary(Path(name), text, pieces)
        if _same(found, tokenizer):
            return VocabularyFile(name, text, found.ids, pieces)
        name = f"{stem}.yml"
    elif pieces:
        found = parse_vocabulary(Path(name), pieces)
        if _same(found, tokenizer):
            return VocabularyFile(name, pieces, found.ids)
    added = isinstance(tokenizer, PieceTokenizer) and tokenizer.added.tokens
    if added or not isinstance(tokenizer, PieceTokenizer | WordTokenizer):
        raise UserError(
            "Marian has vocabularies of SentencePiece and of words, not of this tokenizer",
            where="data.tokenizer.kind",
            hint="Train with `kind: bpe`, `unigram` or `word`; or run the model with `sparsenmt decode`.",
        )
    return _words(tokenizer, Path(name).with_suffix(".yml").name, pieces)


def _same(found: MarianVocabulary, tokenizer: Tokenizer) -> bool:
    """Return True if a vocabulary has the tokens of a tokenizer, in its order."""
    own = found.tokenizer
    return own.pieces(range(own.size)) == tokenizer.pieces(range(tokenizer.size))


def _words(tokenizer: Tokenizer, name: str, pieces: bytes) -> VocabularyFile:
    """A vocabulary in YAML: `</s>` and `<unk>` first, as Marian has them; no padding and no `<s>`."""
    tokens = tokenizer.pieces(range(tokenizer.size))
    first = len(SPECIAL_TOKENS)
    if twice := next((each for each in tokens[first:] if each in SPECIAL_TOKENS), ""):
        raise UserError(
            f"the vocabulary has two tokens named {twice}, which Marian cannot tell apart",
            where="data.tokenizer",
            hint="A word of the text looks like a special token: replace it in the text, and train again.",
        )
    order = [EOS, UNK, *range(first, len(tokens))]
    ids = [-1] * len(tokens)
    lines = []
    for number, id_ in enumerate(order):
        ids[id_] = number
        word = json.dumps(tokens[id_], ensure_ascii=False)
        lines.append(f"{word}: {number}\n" if len(word) < _LONGEST_KEY else f"? {word}\n: {number}\n")
    return VocabularyFile(name, "".join(lines).encode(), ids, pieces)
