"""The interface of all tokenizers, and the pair of tokenizers that is saved with a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.pipeline_tokenizer import PipelineTokenizer
from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.spans import Span
from sparsenmt.data.tokenizers.symbol_tokenizers import ByteTokenizer, CharTokenizer, WordTokenizer
from sparsenmt.data.vocabulary import SPACE, SPECIAL_TOKENS, UNK
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from sparsenmt.storage.files import invalid_file, read_json, write_bytes, write_json

SHORTLIST = "shortlist.safetensors"
"""File of the tokens that may come out of each source token; it is read with the model, not with the text."""
LAYOUT = "layout.json"
"""File that says how the files of an imported model were laid out, which `export` writes again."""


class Tokenizer(Protocol):
    """Text <-> token ids. The special ids of `sparsenmt.data.vocabulary` hold for every tokenizer."""

    @property
    def size(self) -> int:
        """Vocabulary size V, special tokens included."""

    @property
    def word_starts(self) -> NDArray[np.bool_]:
        """(V,) True for tokens that start a word. BOS and EOS are words of their own."""

    @property
    def keeps_word_boundaries(self) -> bool:
        """True if `word_starts` marks the beginnings of words."""

    def encode(self, line: str) -> list[int]:
        """The ids of a line, without BOS and EOS."""

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """`encode` for many lines at once."""

    def spans(self, line: str) -> list[Span]:
        """The places of the tokens of `encode` in the line; a space may belong to the token after it, or to none."""

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        """The text of ids; padding, BOS and EOS are skipped.

        unknown: the texts of the unknown tokens, in order; empty: each becomes U+2047.
        """

    def pieces(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> list[str]:
        """The tokens of ids as strings, special tokens included.

        unknown: as for `decode`; without texts, an unknown token is ``<unk>``.
        """

    def required(self, ids: Collection[int]) -> set[int]:
        """The ids that a vocabulary of ``ids`` needs for the same tokens of a text that has no others.

        These ids, their single characters, bytes, user symbols, and the tokens on the way to them; special ones not.

        Raises:
            ValueError: the vocabulary of such a tokenizer cannot be reduced; the message says why.
        """

    def reduced(self, ids: Sequence[int]) -> Tokenizer:
        """The tokenizer of some tokens, which `required` returned, renumbered in their order.

        ids: rising, the special ones first.
        """

    @classmethod
    def load(cls, directory: Path, stem: str) -> Tokenizer:
        """Read what `save` wrote.

        Raises:
            UserError: a file is missing or is not a tokenizer.
        """

    def save(self, directory: Path, stem: str) -> None:
        """Write ``{stem}.json`` and any other files of the tokenizer, named after ``stem``."""


def alphabet_size(tokenizer: Tokenizer) -> int:
    """Count the tokens that are a single character; the space symbol is none."""
    return sum(len(name) == 1 and name != SPACE for name in tokenizer.pieces(range(tokenizer.size)))


def unknown_texts(tokenizer: Tokenizer, line: str) -> list[str]:
    """The text of every unknown token of a line, in order."""
    ids = tokenizer.encode(line)
    if UNK not in ids:
        return []
    return [line[begin:end] for id_, (begin, end) in zip(ids, tokenizer.spans(line), strict=True) if id_ == UNK]


_SYMBOL_TOKENIZERS: dict[str, type[CharTokenizer | WordTokenizer | ByteTokenizer]] = {
    "char": CharTokenizer,
    "word": WordTokenizer,
    "byte": ByteTokenizer,
}

_TOKENIZERS: dict[str, type[Tokenizer]] = {
    **_SYMBOL_TOKENIZERS,
    "sentencepiece": SentencePieceTokenizer,
    PieceTokenizer.kind: PieceTokenizer,
    PipelineTokenizer.kind: PipelineTokenizer,
}


def train_tokenizer(options: schema.TokenizerSection, lines: Iterable[str]) -> Tokenizer:
    """Train a tokenizer as the recipe asks. The same lines give the same bytes.

    Raises:
        UserError: there is no text, or the vocabulary size does not fit the text; the message names one that does.
    """
    kind = _SYMBOL_TOKENIZERS.get(options.kind, SentencePieceTokenizer)
    return kind.train(options, _nonblank(lines))


def load_tokenizer(directory: Path, stem: str) -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Raises:
        UserError: a file is missing or is not a tokenizer.
    """
    path = directory / f"{stem}.json"
    settings = read_json(path)
    kind = settings.get("kind") if isinstance(settings, dict) else None
    if isinstance(kind, str) and kind in _TOKENIZERS:
        return _TOKENIZERS[kind].load(directory, stem)
    raise invalid_file(path, f"not a tokenizer of this version (kind {kind!r})")


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both languages.

    Args:
        shared: True if both have one vocabulary: the same tokenizer, or two that divide text each in its own way.
        frames: the tokens around sentences.
        shortlist: the file of a shortlist that the model came with; `Bundle.shortlist` reads it.
        layout: the file `LAYOUT` of a model that was imported, as its importer wrote it.
    """

    source: Tokenizer
    target: Tokenizer
    shared: bool
    frames: Frames = field(default_factory=Frames)
    shortlist: bytes | None = None
    layout: bytes | None = None

    @property
    def language_names(self) -> tuple[str, ...]:
        """The names of the tokens of languages, such as ``__fr__``."""
        return tuple(self.source.pieces(list(self.frames.languages.values())))

    def save(self, directory: Path) -> None:
        """Write both into a directory, which is created if it is missing."""
        directory.mkdir(parents=True, exist_ok=True)
        one = self.shared and self.source is self.target
        if one:
            self.source.save(directory, "shared")
        else:
            self.source.save(directory, "source")
            self.target.save(directory, "target")
        self.frames.save(directory / "frames.json")
        for name, content in ((SHORTLIST, self.shortlist), (LAYOUT, self.layout)):
            if content is not None:
                write_bytes(directory / name, content)
        write_json(directory / "tokenizers.json", {"shared": self.shared} | ({"files": 2} if self.shared > one else {}))

    @classmethod
    def load(cls, directory: Path) -> Tokenizers:
        """Read what `save` wrote.

        Raises:
            UserError: a file is missing or broken.
        """
        path = directory / "tokenizers.json"
        settings = read_json(path)
        if not isinstance(settings, dict) or not isinstance(settings.get("shared"), bool):
            raise invalid_file(path, "not a pair of tokenizers")
        shared = settings["shared"]
        one = shared and settings.get("files") != 2
        source = load_tokenizer(directory, "shared" if one else "source")
        target = source if one else load_tokenizer(directory, "target")
        if shared and source.size != target.size:
            raise invalid_file(path, "the tokenizers do not have one vocabulary")
        frames = Frames.read(directory / "frames.json", source.size, target.size)
        paths = (directory / SHORTLIST, directory / LAYOUT)
        return cls(source, target, shared, frames, *(path.read_bytes() if path.exists() else None for path in paths))


@dataclass(frozen=True)
class ReducedVocabularies:
    """Tokenizers of some of the tokens of others, without a shortlist.

    Args:
        source_ids, target_ids: the old id of each id; None: the vocabulary is the old one.
    """

    tokenizers: Tokenizers
    source_ids: list[int] | None
    target_ids: list[int] | None


def reduce_vocabularies(
    tokenizers: Tokenizers, source: Collection[int] | None, target: Collection[int] | None, codes: Collection[str]
) -> ReducedVocabularies:
    """Reduce the vocabularies to the tokens of texts, and to what these need (see `Tokenizer.required`).

    Args:
        source, target: ids that texts have on each side; None: all; of a shared vocabulary both or neither.
        codes: the languages that stay.

    Raises:
        UserError: such a vocabulary cannot be reduced.
    """
    framed = tokenizers.frames.tokens(codes)
    used = [None if ids is None else {*ids, *own} for ids, own in zip((source, target), framed, strict=True)]
    pair = (tokenizers.source, tokenizers.target)
    if tokenizers.shared and used[0] is not None and used[1] is not None:
        joint, before = used[0] | used[1], 0
        while len(joint) > before:  # each of two models that divide text may need other tokens
            before = len(joint)
            joint |= _required(pair[0], joint) | (set() if pair[0] is pair[1] else _required(pair[1], joint))
        used = [joint, joint]
    rows = [
        None if ids is None else sorted({*range(len(SPECIAL_TOKENS)), *_required(each, ids)})
        for each, ids in zip(pair, used, strict=True)
    ]
    source_reduced, target_reduced = (
        each if ids is None else each.reduced(ids) for each, ids in zip(pair, rows, strict=True)
    )
    if pair[0] is pair[1]:
        target_reduced = source_reduced
    source_places, target_places = (
        {old: new for new, old in enumerate(range(each.size) if ids is None else ids)}
        for each, ids in zip(pair, rows, strict=True)
    )
    frames = tokenizers.frames.renumbered(source_places, target_places, codes)
    reduced = Tokenizers(source_reduced, target_reduced, tokenizers.shared, frames, layout=tokenizers.layout)
    return ReducedVocabularies(reduced, *rows)


def _required(tokenizer: Tokenizer, ids: Collection[int]) -> set[int]:
    try:
        return tokenizer.required(ids)
    except ValueError as error:
        raise UserError(
            f"the model's tokenizer cannot be cut: {error}",
            where="--vocabulary",
            hint="Leave its vocabulary as it is; --encoder-layers and --decoder-layers cut the layers alone.",
        ) from None


def _nonblank(lines: Iterable[str]) -> Iterator[str]:
    """The lines that are not blank; UserError if there are none."""
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
