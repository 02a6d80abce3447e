"""Text <-> pieces: what every tokenizer offers, and the pair of tokenizers that a model is saved with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.symbol_tokenizers import CharTokenizer, WordTokenizer
from sparsenmt.errors import UserError
from sparsenmt.files import read_json, write_json
from sparsenmt.recipe import schema


class Tokenizer(Protocol):
    """Text <-> ids of pieces. The special ids of `sparsenmt.data.vocabulary` hold for every tokenizer."""

    @property
    def size(self) -> int:
        """Number of pieces V, the special ones included."""
        ...

    @property
    def word_starts(self) -> NDArray[np.bool_]:
        """(V,) True where the piece starts a word. BOS and EOS are words of their own."""
        ...

    @property
    def keeps_word_boundaries(self) -> bool:
        """Whether `word_starts` says where words begin."""
        ...

    def encode(self, line: str) -> list[int]:
        """The ids of a line, without BOS and EOS."""
        ...

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """`encode` for many lines at once."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; padding, BOS and EOS are skipped, an unknown piece shows as U+2047."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The names of ids, the special ones included."""
        ...

    def save(self, directory: Path, stem: str) -> None:
        """Write ``{stem}.json`` and whatever goes with it."""
        ...


def train_tokenizer(options: schema.TokenizerSection, lines: Iterable[str]) -> Tokenizer:
    """Train a tokenizer as the recipe asks. The same lines give the same bytes.

    Raises:
        UserError: there is no text, or the vocabulary size does not fit the text (with the size that does).
    """
    if options.kind == "word":
        return WordTokenizer.train(options, _content(lines))
    if options.kind == "char":
        return CharTokenizer.train(options, _content(lines))
    return SentencePieceTokenizer.train(options, _content(lines))


def load_tokenizer(directory: Path, stem: str) -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Raises:
        UserError: a file is missing or is not a tokenizer.
    """
    path = directory / f"{stem}.json"
    settings = read_json(path)
    kind = settings.get("kind") if isinstance(settings, dict) else None
    if kind == "sentencepiece":
        return SentencePieceTokenizer.load(directory, stem)
    if kind == "char":
        return CharTokenizer.load(directory, stem)
    if kind == "word":
        return WordTokenizer.load(directory, stem)
    raise UserError(
        f"not a tokenizer of this version (kind {kind!r})",
        where=str(path),
        hint="Take the directory from a copy, or make it again.",
    )


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both languages; one object twice where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer
    shared: bool

    def save(self, directory: Path) -> None:
        """Write both into a directory, which is made if need be."""
        directory.mkdir(parents=True, exist_ok=True)
        if self.shared:
            self.source.save(directory, "shared")
        else:
            self.source.save(directory, "source")
            self.target.save(directory, "target")
        write_json(directory / "tokenizers.json", {"shared": self.shared})

    @classmethod
    def load(cls, directory: Path) -> Tokenizers:
        """Read what `save` wrote.

        Raises:
            UserError: a file is missing or broken.
        """
        directory = Path(directory)
        path = directory / "tokenizers.json"
        settings = read_json(path)
        if not isinstance(settings, dict) or "shared" not in settings:
            raise UserError(
                "not a pair of tokenizers",
                where=str(path),
                hint="Take the directory from a copy, or make it again.",
            )
        if settings["shared"]:
            both = load_tokenizer(directory, "shared")
            return cls(both, both, True)
        return cls(load_tokenizer(directory, "source"), load_tokenizer(directory, "target"), False)


def _content(lines: Iterable[str]) -> Iterator[str]:
    """The lines that are not blank.

    Raises:
        UserError: there is none.
    """
    empty = True
    for line in lines:
        if line.strip(" "):
            empty = False
            yield line
    if empty:
        raise UserError(
            "there is no text to learn a vocabulary from: every training line is empty",
            where="data.train",
            hint="Check the paths of the training corpora.",
        )
