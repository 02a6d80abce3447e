"""How the sources of a model are tagged: by a tagger, or by tags given beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tagging.align import align
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tagging.taggers import Tagger, open_tagger
from sparsenmt.data.tagging.tagsets import TAG_SETS, Category, TagSet, category
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError
from sparsenmt.files import read_json, write_json

if TYPE_CHECKING:
    from sparsenmt.data.features.source_sentences import Sources
    from sparsenmt.data.tokenizers.tokenizer import Tokenizer

GIVEN = "given"
"""In place of a tagger's name: there is none, tags are always given."""


@dataclass(frozen=True, eq=False)
class TaggedPieces:
    """What tags say about N pieces."""

    categories: NDArray[np.int64]
    """(N,) `Category` of each piece's word; END for EOS, REST where there is no word."""
    later: NDArray[np.int64]
    """(N,) 1 for the second and later pieces of a split word, 0 for all others."""
    words: int
    unaligned: int
    """Words, of those that the pieces reach, without any piece of their own."""


def open_for_text(name: str, language: str, where: str) -> Tagger:
    """A tagger for text that has no tags.

    Args:
        name: of the tagger, or `GIVEN`.
        where: for messages: what names the tagger.

    Raises:
        UserError: there is none, or it cannot be had here.
    """
    if name == GIVEN:
        raise UserError(
            "part-of-speech tags are needed, and none are given",
            where=where,
            hint="Give them beside the text: `decode` and `score` take --tags, recipes `tags` beside `source`. Or name "
            "a tagger as `data.tagger.name` in the recipe.",
        )
    try:
        return open_tagger(name, language)
    except UserError as error:
        raise UserError(
            f"part-of-speech tags are needed, and none are given: {error.message}",
            where=where,
            hint=f"{error.hint} `decode` and `score` take tags with --tags, recipes as `tags` beside `source`.",
        ) from None


class Tagging:
    """The choice of a tagger, kept with prepared data and models so that every input is tagged the same way.

    Args:
        name: of the tagger, or `GIVEN`.
        language: its language code.
        version: of the tagger that the training data were tagged with; None: they were not.
        given_tagset: of the tags that were given beside the training data; None: there were none.
        tagger_tagset: of the tagger that the training data were tagged with; None: they were not.
        where: for messages: what names the tagger.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        name: str,
        language: str,
        version: str | None = None,
        given_tagset: TagSet | None = None,
        tagger_tagset: TagSet | None = None,
        where: str = "data.tagger",
    ) -> None:
        self.name, self.language = name, language
        self.given_tagset, self.tagger_tagset = given_tagset, tagger_tagset
        self._tokenizer, self._version, self._where = tokenizer, version, where
        self._tagger: Tagger | None = None
        self._last: tuple[Sources, TaggedPieces] | None = None
        self._words = self._unaligned = 0

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> Tagging:
        """Read what `save` wrote.

        Raises:
            UserError: the file is missing or is something else.
        """
        state = read_json(path)
        try:
            name, language, version = state["tagger"], state["language"], state["version"]
            tagsets = {key: state[key] for key in ("given_tagset", "tagger_tagset")}
            if not {*tagsets.values()} <= {None, *TAG_SETS}:
                raise KeyError
        except (KeyError, TypeError):
            raise UserError(
                "does not name a tagger", where=str(path), hint="Take the directory from a copy, or make it again."
            ) from None
        return cls(tokenizer, name=name, language=language, version=version, where=str(path), **tagsets)

    def save(self, path: Path) -> None:
        """Write the choice into a JSON file."""
        state = {
            "tagger": self.name,
            "language": self.language,
            "version": self._version,
            "given_tagset": self.given_tagset,
            "tagger_tagset": self.tagger_tagset,
        }
        write_json(path, state)

    def tagger(self) -> Tagger:
        """The tagger, for text without tags.

        Raises:
            UserError: there is none, or it cannot be had here.
        """
        if self._tagger is None:
            self._tagger = open_for_text(self.name, self.language, self._where)
            if self._version is not None and self._version != self._tagger.version:
                click.echo(
                    f"warning: {self._where}: tagged with {self.name} {self._version}; this is {self._tagger.version}, "
                    "whose tags may differ",
                    err=True,
                )
            self._version = self._version or self._tagger.version
            self.tagger_tagset = self.tagger_tagset or self._tagger.tagset
        return self._tagger

    def tag(self, line: str) -> TaggedSentence:
        """Cut a line into words, and tag them."""
        tagger = self.tagger()
        words = tagger.tokenize(line)
        return TaggedSentence(tuple(words), tuple(tagger.tag(words)), text=line, tagset=tagger.tagset)

    def pieces(self, sources: Sources) -> TaggedPieces:
        """What the tags, given or made here, say about the pieces. Several features ask for the same: it is kept."""
        if self._last is None or self._last[0] is not sources:
            tags = sources.tags
            if tags is None:
                tags = [self.tag(line) for line in sources.lines]
            self._last = sources, self._pieces(sources.ids, tags)
            self._words += self._last[1].words
            self._unaligned += self._last[1].unaligned
        return self._last[1]

    def report(self, name: str) -> str | None:
        """One line about the words that no piece belongs to, since it was last asked for; None if there were none."""
        words, unaligned = self._words, self._unaligned
        self._words = self._unaligned = 0
        if not unaligned:
            return None
        return f"{name}: {unaligned:,} of {words:,} tagged words ({unaligned / words:.2%}) have no piece of their own"

    def _pieces(self, ids: NDArray[np.int64], tags: Sequence[TaggedSentence]) -> TaggedPieces:
        categories = np.full(len(ids), Category.REST, dtype=np.int64)
        later = np.zeros(len(ids), dtype=np.int64)
        start = words = unaligned = 0
        ends = (np.flatnonzero(ids == EOS) + 1).tolist()
        for end, sentence in zip(ends, tags, strict=True):
            found = align(self._tokenizer, ids[start:end], sentence.words)
            of_word = np.array([category(tag, sentence.tagset) for tag in sentence.tags], dtype=np.int64)
            has_word = found.words >= 0
            categories[start:end][has_word] = of_word[found.words[has_word]]
            later[start:end] = found.later
            words, unaligned = words + found.word_count, unaligned + found.unaligned
            start = end
        categories[ids == EOS] = Category.END
        return TaggedPieces(categories, later, words, unaligned)
