"""The contents of a SentencePiece model file: its tokens, and the model of some of them.

A unigram model takes the best path through a line, and without other tokens that path is still the best. The score of
an unknown character is counted from the lowest one, and that of a user symbol from the highest: these tokens stay. Of
BPE, the tokens on the way to a token stay.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from sparsenmt.data.tokenizers.byte_pairs import tokens_on_the_way
from sparsenmt.data.tokenizers.wire_format import field_values, read_number, without_field, without_items

# Fields of ModelProto, of its TrainerSpec, and of a token.
_PIECES, _TRAINER_SPEC, _SELF_TESTS = 1, 2, 4
_MODEL_TYPE = 3
_NAME, _SCORE, _KIND = 1, 2, 3
_UNIGRAM, BPE = 1, 2  # model types; others look up words or characters
NORMAL, _USER_DEFINED, _UNUSED = 1, 4, 5  # kinds of tokens that are found in a text


@dataclass(frozen=True)
class SentencePieceModel:
    """The tokens of a model file.

    Args:
        content: the bytes of the file.
        names, scores, kinds: of the tokens, by SentencePiece's ids.
    """

    content: bytes
    model_type: int
    names: tuple[str, ...]
    scores: tuple[float, ...]
    kinds: tuple[int, ...]

    @classmethod
    def read(cls, content: bytes) -> SentencePieceModel:
        """Read the bytes of a model file.

        Raises:
            ValueError: it is none.
        """
        names, scores, kinds = [], [], []
        for piece in field_values(content, _PIECES):
            names.append(b"".join(field_values(piece, _NAME)).decode())
            scores.append(struct.unpack("<f", next(field_values(piece, _SCORE), bytes(4)))[0])
            kinds.append(next(map(read_number, field_values(piece, _KIND)), NORMAL))
        trainer = b"".join(field_values(content, _TRAINER_SPEC))
        model_type = next(map(read_number, field_values(trainer, _MODEL_TYPE)), _UNIGRAM)
        return cls(content, model_type, tuple(names), tuple(scores), tuple(kinds))

    @cached_property
    def _found(self) -> dict[str, int]:
        """Token -> id of those that are found in a text."""
        kinds = (NORMAL, _USER_DEFINED, _UNUSED)
        return {name: id_ for id_, (name, kind) in enumerate(zip(self.names, self.kinds, strict=True)) if kind in kinds}

    def required(self, ids: Iterable[int]) -> set[int]:
        """The tokens that a model of ``ids`` needs: their characters, and those that lead to the same tokens.

        Special tokens, user symbols and bytes are always needed.
        """
        others = {id_ for id_, kind in enumerate(self.kinds) if kind != NORMAL}
        wanted = others | set(ids)
        names = [self.names[id_] for id_ in wanted if self.kinds[id_] in (NORMAL, _UNUSED)]
        parts = {character for name in names for character in name}
        if self.model_type == BPE:
            parts.update(*map(self._on_the_way, names))
        if self.model_type == _UNIGRAM and (normal := [i for i, kind in enumerate(self.kinds) if kind == NORMAL]):
            wanted |= {min(normal, key=self.scores.__getitem__), max(normal, key=self.scores.__getitem__)}
        return wanted | {self._found[name] for name in parts if name in self._found}

    def _on_the_way(self, name: str) -> set[str]:
        """The tokens that BPE makes of the characters of a token; of one that it does not make, all parts."""
        parts = tokens_on_the_way(name, self._score)
        if name in parts:
            return parts
        size = len(name)
        return {name[start:end] for start in range(size) for end in range(start + 1, size + 1)}

    def _score(self, left: str, right: str) -> float | None:
        id_ = self._found.get(left + right)
        return None if id_ is None else self.scores[id_]

    def reduced(self, ids: Collection[int]) -> bytes:
        """The file of the model of these tokens, in their order."""
        dropped = set(range(len(self.names))).difference(ids)
        # The file's examples for a test of itself may hold other tokens.
        return without_items(without_field(self.content, (_SELF_TESTS,)), _PIECES, dropped)
