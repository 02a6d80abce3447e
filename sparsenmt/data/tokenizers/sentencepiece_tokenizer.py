"""SentencePiece BPE and unigram pieces (Kudo and Richardson 2018).

No piece reaches over a space, so a vocabulary is learned from counts of words. BPE learns the same pieces from them as
from the lines themselves. For unigram, SentencePiece would choose the pieces to start from without regard to the
counts: `unigram_seeds` chooses them.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from sparsenmt.data.text import bounded_batches
from sparsenmt.data.tokenizers.unigram_seeds import seed_tokens
from sparsenmt.data.tokenizers.wire_format import without_field
from sparsenmt.data.tokenizers.word_counts import LONGEST_WORD, WordCounts, split_long_word
from sparsenmt.data.vocabulary import BOS, EOS, PAD, SKIPPED_IDS, SPACE, SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.errors import UserError
from sparsenmt.files import read_json, write_bytes, write_json
from sparsenmt.recipe import schema

# What the vocabulary's training may hold: SentencePiece takes up to 0.8 KB a word for it.
TABLE_WORDS, TABLE_CHARACTERS = 200_000, 2_500_000
_SEEDS = 100_000  # pieces that unigram starts from, at least, and times the vocabulary's size:
_SEEDS_A_PIECE = 10
_TRAINING_THREADS = 2  # fixed: the number enters the model file and the order of floating-point sums
# Fields of SentencePiece's ModelProto and TrainerSpec.
_TRAINER_SPEC, _SEEDS_FILE = 2, 54


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
    def train(cls, options: schema.TokenizerSection, lines: Iterator[str]) -> SentencePieceTokenizer:
        """Train on lines; the same lines give the same bytes.

        Of more than `TABLE_WORDS` distinct words, or words of more than `TABLE_CHARACTERS`, rare ones are a sample (see
        `word_counts`); all characters of the text remain. A tab ends a word.

        Raises:
            UserError: the vocabulary is too large or too small for the text.
        """
        symbols = _user_pieces(options)
        counts = WordCounts(words=TABLE_WORDS, characters=TABLE_CHARACTERS)
        tabs = False
        for block in bounded_batches(lines, len):
            text = " ".join(block)
            if options.lowercase:
                text = text.lower()
            if "\t" in text:
                tabs, text = True, text.replace("\t", " ")
            counts.add(_short(text.split(" ")), len(text))
        words = [(word, count) for word, count in counts.most_frequent_first() if SPACE + word not in symbols]
        words += [(character, 1) for character in counts.lost_characters()]
        del counts
        if not words:
            raise UserError(
                "there is no text to learn a vocabulary from: nothing but white space and user symbols",
                where="data.train",
                hint="Check the paths of the training corpora.",
            )
        more: dict[str, Any] = {"required_chars": "\t"} if tabs and options.normalization != "nmt_nfkc" else {}
        if symbols:
            more["user_defined_symbols"] = symbols
        with tempfile.NamedTemporaryFile("wb", suffix=".tsv") as seeds:
            if options.kind == "unigram":
                seeds.writelines(_seeds(words, options))
                seeds.flush()
                more["seed_sentencepieces_file"] = seeds.name
            table = io.BytesIO(b"".join(f"{word}\t{count}\n".encode() for word, count in words))
            del words  # SentencePiece needs the memory
            model = _learn(table, options, more)
        return cls(model, lowercase=options.lowercase)

    @classmethod
    def load(cls, directory: Path, stem: str) -> SentencePieceTokenizer:
        """Read what `save` wrote."""
        path = directory / f"{stem}.model"
        try:
            model = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"cannot be read: {error.strerror}",
                where=str(path),
                hint="Take the directory from a copy, or make it again.",
            ) from None
        settings = read_json(directory / f"{stem}.json")
        try:
            if not model:  # SentencePiece would complain on its own, and go on
                raise RuntimeError("an empty file")
            return cls(model, lowercase=bool(settings["lowercase"]))
        except (RuntimeError, IndexError, KeyError, TypeError):
            raise UserError(
                "not a SentencePiece model, or a damaged one",
                where=str(path),
                hint="Take the directory from a copy, or make it again.",
            ) from None

    @property
    def model(self) -> bytes:
        """SentencePiece's own model file, which other programs read."""
        return self._model

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
        return str(self._processor.decode([int(id_) for id_ in ids if id_ not in SKIPPED_IDS]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._processor.id_to_piece(int(id_))) for id_ in ids]

    def save(self, directory: Path, stem: str) -> None:
        write_json(directory / f"{stem}.json", {"kind": "sentencepiece", "lowercase": self._lowercase})
        write_bytes(directory / f"{stem}.model", self._model)

    def _prepared(self, line: str) -> str:
        return line.lower() if self._lowercase else line


def _user_pieces(options: schema.TokenizerSection) -> list[str]:
    """The pieces of the user's symbols: with the space in front, so that a marker between spaces is one piece, not two.

    Raises:
        UserError: a symbol would not be found, because the text around it is changed before it is looked for.
    """
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=options.normalization)
    for number, symbol in enumerate(options.user_symbols):
        normal = normalizer.normalize(symbol).removeprefix(SPACE)
        if normal != symbol:
            raise UserError(
                f"normalisation turns the symbol '{symbol}' into '{normal}', so that it is never found",
                where=f"data.tokenizer.user_symbols.{number}",
                hint=f"Write '{normal}', or take data.tokenizer.normalization `identity`.",
            )
    return [SPACE + symbol for symbol in options.user_symbols]


def _short(words: Sequence[str]) -> Iterable[str]:
    """The words, without empty ones, and with long ones in parts."""
    if len(max(words, key=len)) <= LONGEST_WORD:
        return filter(None, words)
    return (part for word in words for part in split_long_word(word))


def _seeds(words: Sequence[tuple[str, int]], options: schema.TokenizerSection) -> Iterator[bytes]:
    """Lines of a piece to start from, a tab and its count."""
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=options.normalization)
    counts: Counter[str] = Counter()
    for word, count in words:
        for normal in normalizer.normalize(word).split(SPACE):  # an odd kind of space may have become a space
            if normal:
                counts[SPACE + normal] += count
    size = max(_SEEDS, _SEEDS_A_PIECE * options.vocabulary_size)
    for piece, count in seed_tokens(list(counts), list(counts.values()), size):
        yield f"{piece}\t{count}\n".encode()


def _learn(table: Iterable[bytes], options: schema.TokenizerSection, more: Mapping[str, Any]) -> bytes:
    """SentencePiece's model, learned from lines of a word, a tab and its count."""
    model = io.BytesIO()
    failures: list[BaseException] = []
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_watched((line.rstrip(b"\n") for line in table), failures),
            input_format="tsv",
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
            pad_piece=SPECIAL_TOKENS[PAD],
            unk_piece=SPECIAL_TOKENS[UNK],
            bos_piece=SPECIAL_TOKENS[BOS],
            eos_piece=SPECIAL_TOKENS[EOS],
            unk_surface=UNKNOWN_SURFACE,
            num_threads=_TRAINING_THREADS,
            minloglevel=3,
            **more,
        )
    except RuntimeError as error:
        if failures:  # SentencePiece turns whatever the lines raise, Ctrl-C too, into an error of its own
            raise failures[0] from None
        raise _as_user_error(error, options) from None
    # The name of a temporary file is another one every time.
    return without_field(model.getvalue(), (_TRAINER_SPEC, _SEEDS_FILE))


def _watched(lines: Iterator[bytes], failures: list[BaseException]) -> Iterator[bytes]:
    """The lines; what they raise is kept."""
    try:
        yield from lines
    except BaseException as error:
        failures.append(error)
        raise


def _as_user_error(error: RuntimeError, options: schema.TokenizerSection) -> UserError:
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
    if "all_chars_count" in text:
        return UserError(
            "the training text has no characters left after normalisation",
            where="data.train",
            hint="Look at the text; data.tokenizer.normalization `identity` leaves it as it is.",
        )
    return UserError(
        f"SentencePiece cannot learn a vocabulary from the training text: {' '.join(text.split())}",
        where="data.tokenizer",
        hint="Look at the text; data.tokenizer.kind `char` or `word` does without SentencePiece.",
    )
