"""Marian's vocabularies: SentencePiece models (`.spm`), and words with their numbers (`.yml`).

Marian's ids are those of the file, with `</s>` and `<unk>` anywhere. This program's begin with its four special tokens:
a SentencePiece model is written anew with its pieces in this order, which changes no segmentation.
Shapes: V tokens of this program, U of Marian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor

from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.symbol_tokenizers import WordTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.tokenizers.wire_format import bytes_field, number_field, values
from sparsenmt.data.vocabulary import BOS, EOS, PAD, SPACE, SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.errors import UserError
from sparsenmt.files import regular_file

_MOST_BYTES = 1 << 28
_AGAIN = "Copy the vocabulary again from where the model comes from."
# Fields and numbers of SentencePiece's ModelProto.
_PIECES, _TRAINER_SPEC, _PIECE, _TYPE, _MODEL_TYPE = 1, 2, 1, 3, 3
_UNKNOWN_TYPE, _CONTROL_TYPE = 2, 3
_UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID, _UNK_SURFACE, _BOS_PIECE, _PAD_PIECE = 40, 41, 42, 43, 44, 46, 48
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary in this program's order."""

    path: Path
    kind: str  # as in the recipe
    tokenizer: Tokenizer
    ids: tuple[int, ...]  # (V) Marian's id of each token; -1: it has no such token
    size: int  # U

    def rows(self, table: Tensor, *, missing: float = 0.0) -> Tensor:
        """Put the rows (U, ...) of a table into this program's order; what Marian does not have is ``missing``."""
        ids = torch.tensor(self.ids)
        found = table[ids.clamp_min(0)]
        found[ids < 0] = missing
        return found


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary.

    Raises:
        UserError: it is of another kind, damaged, or has no end of a sentence or no unknown token.
    """
    if path.suffix not in (".spm", ".model", ".yml", ".yaml"):
        raise UserError(
            f"a vocabulary of the kind `{path.suffix}` cannot be imported",
            where=str(path),
            hint="Vocabularies are SentencePiece models (.spm) or words with numbers (.yml); factors are not read.",
        )
    try:
        with open(path, "rb", opener=regular_file) as stream:
            data = stream.read(_MOST_BYTES + 1)
        if not data or len(data) > _MOST_BYTES:
            raise ValueError(f"{len(data):,} bytes")
        return _sentencepiece(path, data) if path.suffix in (".spm", ".model") else _words(path, data)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), hint="Check its path.") from None
    except (ValueError, RuntimeError, IndexError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"not a vocabulary of Marian, or a damaged one: {reason}", where=str(path), hint=_AGAIN
        ) from None


def _order(end: int, unknown: int, size: int, others: tuple[int, int] = (-1, -1)) -> tuple[int, ...]:
    """Marian's ids in this program's order; ``others``: those of padding and of the beginning, if they exist."""
    special = {PAD: others[0], UNK: unknown, BOS: others[1], EOS: end}
    if end == unknown or min(end, unknown) < 0:
        raise ValueError("it has no </s> or no <unk>")
    return (*(special[id_] for id_ in sorted(special)), *(id_ for id_ in range(size) if id_ not in special.values()))


def _sentencepiece(path: Path, data: bytes) -> Vocabulary:
    """A SentencePiece model whose special tokens have the ids of this program."""
    pieces, rest, kind = [], [], 1
    for number, value in values(data):
        if number == _PIECES:
            pieces.append(value)
            continue
        rest.append(bytes_field(number, value))
        if number == _TRAINER_SPEC:
            kind = next((value[0] for field, value in values(value) if field == _MODEL_TYPE), kind)
    names, types = [], []
    for piece in pieces:
        parts = dict(values(piece))
        names.append(parts.get(_PIECE, b"").decode())
        types.append(parts.get(_TYPE, b"\1")[0])
    control = {name: id_ for id_, (name, type_) in enumerate(zip(names, types, strict=True)) if type_ == _CONTROL_TYPE}
    unknown = types.index(_UNKNOWN_TYPE) if _UNKNOWN_TYPE in types else -1
    begin = (control.get(SPECIAL_TOKENS[PAD], -1), control.get(SPECIAL_TOKENS[BOS], -1))
    ids = _order(control.get(SPECIAL_TOKENS[EOS], -1), unknown, len(pieces), begin)
    written = [bytes_field(_PIECES, pieces[id_] if id_ >= 0 else _control(ours)) for ours, id_ in enumerate(ids)]
    settings = b"".join(
        [
            *(
                number_field(field, id_)
                for field, id_ in ((_UNK_ID, UNK), (_BOS_ID, BOS), (_EOS_ID, EOS), (_PAD_ID, PAD))
            ),
            bytes_field(_UNK_SURFACE, UNKNOWN_SURFACE.encode()),
            *(
                bytes_field(field, SPECIAL_TOKENS[id_].encode())
                for field, id_ in ((_BOS_PIECE, BOS), (_PAD_PIECE, PAD))
            ),
        ]
    )
    model = b"".join([*written, *rest, bytes_field(_TRAINER_SPEC, settings)])  # what comes last counts
    tokenizer = SentencePieceTokenizer(model, lowercase=False)
    never = tuple(-1 if ours in (PAD, BOS) else id_ for ours, id_ in enumerate(ids))  # Marian begins with a zero vector
    return Vocabulary(path, _KINDS.get(kind, "unigram"), tokenizer, never, len(pieces))


def _control(id_: int) -> bytes:
    """A piece of SentencePiece for a special token that the model does not have."""
    return bytes_field(_PIECE, SPECIAL_TOKENS[id_].encode()) + number_field(_TYPE, _CONTROL_TYPE)


def _words(path: Path, data: bytes) -> Vocabulary:
    """Words with their ids."""
    found = yaml.load(data.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(found, dict) or sorted(map(repr, found.values())) != sorted(map(repr, range(len(found)))):
        raise ValueError("its words do not have the numbers from 0 on")
    words: Sequence[str] = sorted(map(str, found), key={str(word): id_ for word, id_ in found.items()}.__getitem__)
    if sum(word.startswith(SPACE) for word in words) > len(words) // 20:
        raise UserError(
            "its words are pieces of SentencePiece",
            where=str(path),
            hint="Name the SentencePiece model of the same pieces: a .spm file that Marian read itself.",
        )
    ids = _order(
        *(words.index(name) if name in words else -1 for name in (SPECIAL_TOKENS[EOS], SPECIAL_TOKENS[UNK])), len(words)
    )
    tokenizer = WordTokenizer([words[id_] for id_ in ids[len(SPECIAL_TOKENS) :]], lowercase=False)
    return Vocabulary(path, WordTokenizer.kind, tokenizer, ids, len(words))
