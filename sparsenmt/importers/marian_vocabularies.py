"""Marian's vocabularies: SentencePiece models (`.spm`), and words or its tokens with their numbers (`.yml`).

Marian's ids are those of the file, with `</s>` and `<unk>` anywhere; this program's begin with its four special tokens.
Shapes: V tokens of this program, U of Marian.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import yaml
from torch import Tensor

from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.symbol_tokenizers import WordTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE, SPECIAL_TOKENS, UNK
from sparsenmt.errors import UserError
from sparsenmt.files import without_mark
from sparsenmt.importers.foreign_files import check_tokens, read_content

_MOST_BYTES = 1 << 28
_AGAIN = "Copy the vocabulary again from where the model comes from."
_FIRST = len(SPECIAL_TOKENS)
_TAG = re.compile(r">>(\w+)<<")


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
    if path.suffix not in (".spm", ".model", ".yml", ".yaml"):
        raise UserError(
            f"a vocabulary of the kind `{path.suffix}` cannot be imported",
            where=str(path),
            hint="Vocabularies are SentencePiece models (.spm) or words with numbers (.yml); factors are not read.",
        )
    data = without_mark(read_content(path, _MOST_BYTES), str(path))
    try:
        if path.suffix in (".spm", ".model"):
            return _pieces(path, data)
        names = _names(data)
        check_tokens(names, path)
        if sum(name.startswith(SPACE) for name in names) > len(names) // 20:
            return _pieces(path, read_content(path.with_name(f"{side}.spm"), _MOST_BYTES), names)
        ids = _order(names)
        words = WordTokenizer([names[id_] for id_ in ids[_FIRST:]], lowercase=False)
        return MarianVocabulary(path, words, ids, len(names), {})
    except (ValueError, RuntimeError, yaml.YAMLError, RecursionError) as error:
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
    tags = {found[1]: id_ for id_, name in enumerate(named, _FIRST) if (found := _TAG.fullmatch(name))}
    markers = [id_ for id_, name in enumerate(named, _FIRST) if name in control or id_ in tags.values()]
    named = [f"{name}_" if name in SPECIAL_TOKENS else name for name in named]
    return MarianVocabulary(path, PieceTokenizer(model, named, markers), ids, len(names), tags)


def _names(data: bytes) -> list[str]:
    """The words of a `.yml` in the order of their numbers. All words are texts: `no`, `1.0` and `007`, too."""
    scalars, depth = [], 0
    for event in yaml.parse(data.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.ScalarEvent):
            scalars.append(event.value)
        depth += isinstance(event, yaml.MappingStartEvent)
        if isinstance(event, (yaml.SequenceStartEvent, yaml.AliasEvent)) or depth > 1:
            raise ValueError("not words with their numbers")
    words, numbers = scalars[::2], scalars[1::2]
    if not depth or not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise ValueError("not words with their numbers")
    found = dict(zip(words, map(int, numbers), strict=True))
    if len(found) != len(words) or sorted(found.values()) != list(range(len(found))):
        raise ValueError("its words do not have the numbers from 0 on, each once")
    return sorted(found, key=found.__getitem__)
