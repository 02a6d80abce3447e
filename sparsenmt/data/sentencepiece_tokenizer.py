"""SentencePiece BPE and unigram pieces (Kudo and Richardson 2018)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from sparsenmt.data.vocabulary import BOS, EOS, PAD, SILENT, SPACE, SPECIAL_PIECES, UNK, UNKNOWN_SURFACE
from sparsenmt.errors import UserError
from sparsenmt.files import read_json, write_json
from sparsenmt.recipe import schema

_LONGEST_LINE = 1 << 30  # bytes; SentencePiece silently skips longer training lines, by default those over 4192
_TRAINING_THREADS = 2  # fixed: the number enters the model file and the order of floating-point sums


class SentencePieceTokenizer:
    """A SentencePiece model, and whether text is lowercased before it."""

    def __init__(self, model: bytes, *, lowercase: bool) -> None:
        self._model = model
        self._lowercase = lowercase
        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        starts = [self._processor.id_to_piece(id_).startswith(SPACE) for id_ in range(self.size)]
        self._word_starts = np.array(starts, dtype=np.bool_)
        self.keeps_word_boundaries = bool(self._word_starts.any())
        self._word_starts[[BOS, EOS]] = True

    @classmethod
    def train(cls, options: schema.Tokenizer, lines: Iterator[str]) -> SentencePieceTokenizer:
        """Train on lines; the same lines give the same bytes.

        Raises:
            UserError: the vocabulary is too large or too small for the text.
        """
        if options.lowercase:
            lines = (line.lower() for line in lines)
        model = io.BytesIO()
        failures: list[BaseException] = []
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_watched(lines, failures),
                model_writer=model,
                model_type=options.kind,
                vocab_size=options.vocabulary_size,
                # Unigram may end with fewer pieces; BPE must not, or a wish for 32k would silently become 3k.
                hard_vocab_limit=options.kind == "bpe",
                character_coverage=options.character_coverage,
                normalization_rule_name=options.normalization,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                pad_piece=SPECIAL_PIECES[PAD],
                unk_piece=SPECIAL_PIECES[UNK],
                bos_piece=SPECIAL_PIECES[BOS],
                eos_piece=SPECIAL_PIECES[EOS],
                unk_surface=UNKNOWN_SURFACE,
                max_sentence_length=_LONGEST_LINE,
                num_threads=_TRAINING_THREADS,
                minloglevel=3,
            )
        except RuntimeError as error:
            if failures:  # SentencePiece turns whatever the lines raise, Ctrl-C too, into an error of its own
                raise failures[0] from None
            raise _as_user_error(error, options) from None
        return cls(model.getvalue(), lowercase=options.lowercase)

    @classmethod
    def load(cls, directory: Path, stem: str) -> SentencePieceTokenizer:
        """Read what `save` wrote."""
        path = directory / f"{stem}.model"
        try:
            model = path.read_bytes()
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
        settings = read_json(directory / f"{stem}.json")
        try:
            if not model:  # SentencePiece would complain on its own, and go on
                raise RuntimeError("an empty file")
            return cls(model, lowercase=bool(settings["lowercase"]))
        except (RuntimeError, IndexError, KeyError, TypeError):
            raise UserError("not a SentencePiece model, or a damaged one", where=str(path)) from None

    @property
    def size(self) -> int:
        return int(self._processor.get_piece_size())

    @property
    def word_starts(self) -> NDArray[np.bool_]:
        return self._word_starts

    def encode(self, line: str) -> list[int]:
        ids: list[int] = self._processor.encode(self._prepared(line))
        return ids

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        if not lines:
            return []
        ids: list[list[int]] = self._processor.encode([self._prepared(line) for line in lines])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode([int(id_) for id_ in ids if id_ not in SILENT]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._processor.id_to_piece(int(id_))) for id_ in ids]

    def save(self, directory: Path, stem: str) -> None:
        write_json(directory / f"{stem}.json", {"kind": "sentencepiece", "lowercase": self._lowercase})
        (directory / f"{stem}.model").write_bytes(self._model)

    def _prepared(self, line: str) -> str:
        return line.lower() if self._lowercase else line


def _watched(lines: Iterator[str], failures: list[BaseException]) -> Iterator[str]:
    """The lines; what they raise is kept."""
    try:
        yield from lines
    except BaseException as error:
        failures.append(error)
        raise


def _as_user_error(error: RuntimeError, options: schema.Tokenizer) -> UserError:
    """Say what SentencePiece's C++ check means for the recipe."""
    text = str(error)
    where = "data.tokenizer.vocabulary_size"
    if largest := re.search(r"too high \(\d+\).*value <= (\d+)", text):
        return UserError(
            f"a vocabulary of {options.vocabulary_size} {options.kind} pieces is too large for the training text",
            where=where,
            hint=f"The largest possible value is {largest[1]}.",
        )
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", text):
        return UserError(
            f"a vocabulary of {options.vocabulary_size} {options.kind} pieces does not hold the text's characters",
            where=where,
            hint=f"The smallest possible value is {smallest[1]}; or lower data.tokenizer.character_coverage.",
        )
    return UserError(f"SentencePiece cannot learn a vocabulary from the training text: {text}", where="data.tokenizer")
