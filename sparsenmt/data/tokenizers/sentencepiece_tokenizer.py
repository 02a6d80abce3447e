"""SentencePiece BPE and unigram tokenizers (Kudo and Richardson 2018).

No token reaches over a space, so a vocabulary can be learned from counts of words. BPE learns the same tokens from them
as from the lines. For unigram, SentencePiece would choose its seeds without regard to the counts: `unigram_seeds`
chooses them.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from sparsenmt.data.text import bounded_batches
from sparsenmt.data.tokenizers.sentencepiece_model import SentencePieceModel
from sparsenmt.data.tokenizers.spans import Span, fill_unknown, spans_before_lowercase
from sparsenmt.data.tokenizers.unigram_seeds import seed_tokens
from sparsenmt.data.tokenizers.wire_format import without_field
from sparsenmt.data.tokenizers.word_counts import LONGEST_WORD, WordCounts
from sparsenmt.data.vocabulary import BOS, EOS, PAD, SKIPPED_IDS, SPACE, SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from sparsenmt.storage.files import invalid_file, read_json, write_bytes, write_json

# Limits of the word table: SentencePiece needs up to 0.8 KB of memory for each word.
TABLE_WORDS, TABLE_CHARACTERS = 200_000, 2_500_000
_MIN_SEEDS, _SEEDS_PER_TOKEN = 100_000, 10  # seeds of unigram: the minimum, and as a multiple of the vocabulary size
_TRAINING_THREADS = 2  # constant: it enters the model file and the order of floating-point sums
_RESERVED = "\u2585\x1f"
"""Characters that the trainer reserves: it skips words with the first, and never keeps the second."""
# Fields of SentencePiece's ModelProto and TrainerSpec.
_TRAINER_SPEC, _SEEDS_FILE = 2, 54


class SentencePieceTokenizer:
    """A SentencePiece model; text may be lowercased before it."""

    def __init__(self, model: bytes, *, lowercase: bool) -> None:
        self.model = model
        """The bytes of SentencePiece's own model file."""
        self._lowercase = lowercase
        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = int(self._processor.get_piece_size())
        starts = [self._processor.id_to_piece(id_).startswith(SPACE) for id_ in range(self.size)]
        self.word_starts: NDArray[np.bool_] = np.array(starts, dtype=np.bool_)
        self.keeps_word_boundaries = bool(self.word_starts.any())
        self.word_starts[[BOS, EOS]] = True

    @classmethod
    def train(cls, options: schema.TokenizerSection, lines: Iterator[str]) -> SentencePieceTokenizer:
        """Train on lines; the same lines give the same bytes.

        If there are more than `TABLE_WORDS` distinct words, or `TABLE_CHARACTERS` characters in them, rare words are
        sampled (see `word_counts`); all characters of the text remain, but NUL, which SentencePiece cannot keep. A tab
        ends a word.

        Raises:
            UserError: the vocabulary is too large or too small for the text.
        """
        symbols = _user_tokens(options)
        counts = WordCounts(words=TABLE_WORDS, characters=TABLE_CHARACTERS)
        tabs = False
        for block in bounded_batches(lines, len):
            text = " ".join(block)
            if options.lowercase:
                text = text.lower()
            if "\t" in text:
                tabs, text = True, text.replace("\t", " ")
            counts.add(_limit_length(text.split(" ")), len(text))
        words = [(word, count) for word, count in counts.most_frequent_first() if SPACE + word not in symbols]
        words += [(character, 1) for character in counts.lost_characters()]
        words, reserved = _divide_at_reserved(words, options)
        del counts
        if not words:
            raise UserError(
                "there is no text to learn a vocabulary from: nothing but white space and user symbols",
                where="data.train",
                hint="Check the paths of the training corpora.",
            )
        more: dict[str, Any] = {"required_chars": "\t"} if tabs and options.normalization != "nmt_nfkc" else {}
        if symbols or reserved:
            more["user_defined_symbols"] = [*symbols, *reserved]
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
            raise invalid_file(path, f"cannot be read: {error.strerror}") from None
        settings = read_json(directory / f"{stem}.json")
        try:
            if not model:  # SentencePiece would print an error of its own and go on
                raise RuntimeError("an empty file")
            return cls(model, lowercase=bool(settings["lowercase"]))
        except (RuntimeError, ValueError, IndexError, KeyError, TypeError):  # ValueError: a token is not UTF-8
            raise invalid_file(path, "not a SentencePiece model, or a damaged one") from None

    def encode(self, line: str) -> list[int]:
        ids: list[int] = self._processor.encode(self._prepared(line))
        return ids

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        if not lines:
            return []
        ids: list[list[int]] = self._processor.encode([self._prepared(line) for line in lines])
        return ids

    def spans(self, line: str) -> list[Span]:
        found = self._processor.encode(self._prepared(line), return_type="offset_mapping")
        spans = [(int(begin), int(end)) for begin, end in found["offsets"]]
        return spans_before_lowercase(line, spans) if self._lowercase else spans

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        kept = [int(id_) for id_ in ids if id_ not in SKIPPED_IDS]
        if not unknown:
            return str(self._processor.decode(kept))
        found = self._processor.decode(kept, return_type="offset_mapping")
        return "".join(fill_unknown(kept, [found["text"][begin:end] for begin, end in found["offsets"]], unknown))

    def pieces(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> list[str]:
        return list(fill_unknown(ids, [str(self._processor.id_to_piece(int(id_))) for id_ in ids], unknown))

    def required(self, ids: Collection[int]) -> set[int]:
        return SentencePieceModel.read(self.model).required(ids)

    def reduced(self, ids: Sequence[int]) -> SentencePieceTokenizer:
        return SentencePieceTokenizer(SentencePieceModel.read(self.model).reduced(ids), lowercase=self._lowercase)

    def save(self, directory: Path, stem: str) -> None:
        write_json(directory / f"{stem}.json", {"kind": "sentencepiece", "lowercase": self._lowercase})
        write_bytes(directory / f"{stem}.model", self.model)

    def _prepared(self, line: str) -> str:
        return line.lower() if self._lowercase else line


def _user_tokens(options: schema.TokenizerSection) -> list[str]:
    """The tokens of the user symbols: with a space in front, so that a marker between spaces is one token, not two.

    Raises:
        UserError: normalisation changes a symbol, so that it would never be found.
    """
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=options.normalization)
    for number, symbol in enumerate(options.user_symbols):
        normal = normalizer.normalize(symbol).removeprefix(SPACE)
        if normal != symbol:
            raise UserError(
                f"normalisation turns the symbol '{symbol}' into '{normal}', so that it is never found",
                where=f"data.tokenizer.user_symbols.{number}",
                hint=f"Write '{normal}', or set data.tokenizer.normalization to `identity`.",
            )
    return [SPACE + symbol for symbol in options.user_symbols]


def _divide_at_reserved(
    words: list[tuple[str, int]], options: schema.TokenizerSection
) -> tuple[list[tuple[str, int]], list[str]]:
    """The words without reserved characters, as their parts; and those found that normalisation keeps: symbols."""
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=options.normalization)
    kept = [each for each in _RESERVED if normalizer.normalize(each).endswith(each)]
    found = [each for each in kept if any(each in word for word, _ in words)]
    if not found:
        return words, []
    counts: Counter[str] = Counter()
    for word, count in words:
        for part in re.split(f"[{''.join(found)}]", word):
            counts[part] += count
    del counts[""]
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])), found


def _limit_length(words: Sequence[str]) -> Iterable[str]:
    """The words without empty ones; long ones are split."""
    if len(max(words, key=len)) <= LONGEST_WORD:
        return filter(None, words)
    return (word[start : start + LONGEST_WORD] for word in words for start in range(0, len(word), LONGEST_WORD))


def _seeds(words: Sequence[tuple[str, int]], options: schema.TokenizerSection) -> Iterator[bytes]:
    """The seeds of unigram as lines ``seed<tab>count``."""
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=options.normalization)
    counts: Counter[str] = Counter()
    for word, count in words:
        for normal in normalizer.normalize(word).split(SPACE):  # normalisation may turn unusual spaces into spaces
            if normal:
                counts[SPACE + normal] += count
    size = max(_MIN_SEEDS, _SEEDS_PER_TOKEN * options.vocabulary_size)
    for seed, count in seed_tokens(list(counts), list(counts.values()), size):
        yield f"{seed}\t{count}\n".encode()


def _learn(table: Iterable[bytes], options: schema.TokenizerSection, more: Mapping[str, Any]) -> bytes:
    """Train a SentencePiece model on lines ``word<tab>count``; returns its bytes."""
    model = io.BytesIO()
    failures: list[BaseException] = []
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_keep_exceptions((line.rstrip(b"\n") for line in table), failures),
            input_format="tsv",
            model_writer=model,
            model_type=options.kind,
            vocab_size=options.vocabulary_size,
            # Unigram may end with fewer tokens; BPE must not: 32k would silently become 3k.
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
        if failures:  # SentencePiece turns every exception of the iterator, even Ctrl-C, into an error of its own
            raise failures[0] from None
        raise _as_user_error(error, options) from None
    # The name of the temporary file differs every time.
    return without_field(model.getvalue(), (_TRAINER_SPEC, _SEEDS_FILE))


def _keep_exceptions(lines: Iterator[bytes], failures: list[BaseException]) -> Iterator[bytes]:
    """Pass the lines through; an exception is appended to ``failures``."""
    try:
        yield from lines
    except BaseException as error:
        failures.append(error)
        raise


def _as_user_error(error: RuntimeError, options: schema.TokenizerSection) -> UserError:
    """Translate an error of SentencePiece's C++ checks into a recipe key and a remedy."""
    text = str(error)
    where = "data.tokenizer.vocabulary_size"
    if largest := re.search(r"too high \(\d+\).*value <= (\d+)", text):
        return UserError(
            f"a vocabulary of {options.vocabulary_size} {options.kind} tokens is too large for the training text",
            where=where,
            hint=f"The largest possible value is {largest[1]}.",
        )
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", text):
        return UserError(
            f"a vocabulary of {options.vocabulary_size} {options.kind} tokens cannot hold the characters of the text",
            where=where,
            hint=f"The smallest possible value is {smallest[1]}; or lower data.tokenizer.character_coverage.",
        )
    if "all_chars_count" in text:
        return UserError(
            "the training text has no characters left after normalisation",
            where="data.train",
            hint="Check the text; data.tokenizer.normalization `identity` leaves it unchanged.",
        )
    return UserError(
        f"SentencePiece cannot learn a vocabulary from the training text: {' '.join(text.split())}",
        where="data.tokenizer",
        hint="Check the text; data.tokenizer.kind `char` and `word` do not need SentencePiece.",
    )
