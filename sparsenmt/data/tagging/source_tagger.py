"""The part-of-speech tags of a model's sources: made by a tagger, or given in files beside the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tagging.tagged_text import TagFile, TaggedSentence, format_tagged_line
from sparsenmt.data.tagging.taggers import Tagger, open_tagger
from sparsenmt.data.tagging.tagsets import TAG_SETS, TagSet, WordCategory, tag_category
from sparsenmt.data.tagging.word_alignment import align_words
from sparsenmt.data.text import read_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify, progress_over
from sparsenmt.recipe import schema
from sparsenmt.storage.files import invalid_file, read_json, write_json

GIVEN = "given"
"""In place of a tagger's name: no tagger is used, tags are always given."""


@dataclass(frozen=True, eq=False)
class SourceSentences:
    """Concatenated source sentences, from which source features are computed."""

    ids: NDArray[np.int64]
    """(N,) token ids; each sentence ends with EOS."""
    lines: Sequence[str]
    """The text of each sentence, not truncated. May be empty strings if no feature needs text."""
    tags: Sequence[TaggedSentence] | None = None
    """The given tags of each sentence; None: none are given."""


@dataclass(frozen=True, eq=False)
class TokenTags:
    """Part-of-speech information about N subword tokens."""

    categories: NDArray[np.int64]
    """(N,) `WordCategory` of each token's word; END for EOS, REST if there is no word."""
    later: NDArray[np.int64]
    """(N,) 1 for the second and later tokens of a split word, 0 for all others."""


def open_tagger_for_text(
    name: str,
    language: str,
    where: str,
    *,
    need: str = "part-of-speech tags are needed, and none are given",
    remedy: str = "`decode` and `score` take tags with --tags, recipes as `tags` beside `source`.",
) -> Tagger:
    """Open a tagger for text without tags.

    Args:
        name: of the tagger, or `GIVEN`.
        where: the key, option or file that names the tagger, for messages.
        need: the reason for opening it.
        remedy: a sentence on how to do without it.

    Raises:
        UserError: there is none, or it is not available here.
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
        raise UserError(f"{need}: {error.message}", where=where, hint=f"{error.hint} {remedy}") from None


class SourceTagger:
    """The choice of a tagger, saved with prepared data and models so that every input is tagged the same way.

    Args:
        tokenizer: of the source.
        name: of the tagger, or `GIVEN`.
        language: its language code.
        version: of the tagger that tagged the training data; None: none did.
        given_tagset: of the tags that were given beside the training data; None: none were given.
        tagger_tagset: of the tagger that tagged the training data; None: none did.
        where: the key or file that names the tagger, for messages.
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
        self._last: tuple[SourceSentences, TokenTags] | None = None
        self._words = self._unaligned = 0

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> SourceTagger:
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
            raise invalid_file(path, "does not name a tagger") from None
        return cls(tokenizer, name=name, language=language, version=version, where=str(path), **tagsets)

    def save(self, path: Path) -> None:
        """Write the choice into a JSON file."""
        state = {"tagger": self.name, "language": self.language, "version": self._version}
        write_json(path, {**state, "given_tagset": self.given_tagset, "tagger_tagset": self.tagger_tagset})

    def tagger(self) -> Tagger:
        """The tagger, for text without tags.

        Raises:
            UserError: there is none, or it is not available here.
        """
        if self._tagger is None:
            self._tagger = open_tagger_for_text(self.name, self.language, self._where)
            if self._version is not None and self._version != self._tagger.version:
                notify(
                    f"warning: {self._where}: tagged with {self.name} {self._version}; this is {self._tagger.version}, "
                    "whose tags may differ"
                )
            self._version = self._version or self._tagger.version
            self.tagger_tagset = self.tagger_tagset or self._tagger.tagset
        return self._tagger

    def tag(self, line: str) -> TaggedSentence:
        """Split a line into words, and tag them."""
        tagger = self.tagger()
        words = tagger.tokenize(line)
        return TaggedSentence(tuple(words), tuple(tagger.tag(words)), text=line, tagset=tagger.tagset)

    def token_tags(self, sources: SourceSentences) -> TokenTags:
        """The tags of the tokens, from given tags or from the tagger. The last result is cached for other features."""
        if self._last is None or self._last[0] is not sources:
            tags = sources.tags
            if tags is None:
                tags = [self.tag(line) for line in sources.lines]
            self._last = sources, self._token_tags(sources.ids, tags)
        return self._last[1]

    def alignment_note(self, name: str) -> str | None:
        """A note on words without a token since the last call; None if there were none."""
        words, unaligned = self._words, self._unaligned
        self._words = self._unaligned = 0
        if not unaligned:
            return None
        return f"{name}: {unaligned:,} of {words:,} tagged words ({unaligned / words:.2%}) have no token of their own"

    def _token_tags(self, ids: NDArray[np.int64], tags: Sequence[TaggedSentence]) -> TokenTags:
        categories = np.full(len(ids), WordCategory.REST, dtype=np.int64)
        later = np.zeros(len(ids), dtype=np.int64)
        start = 0
        ends = (np.flatnonzero(ids == EOS) + 1).tolist()
        for end, sentence in zip(ends, tags, strict=True):
            found = align_words(self._tokenizer, ids[start:end], sentence.words)
            of_word = np.array([tag_category(tag, sentence.tagset) for tag in sentence.tags], dtype=np.int64)
            has_word = found.words >= 0
            categories[start:end][has_word] = of_word[found.words[has_word]]
            later[start:end] = found.later
            self._words += found.word_count
            self._unaligned += found.unaligned
            start = end
        categories[ids == EOS] = WordCategory.END
        return TokenTags(categories, later)


class CorpusTags:
    """The tags of a recipe's training corpora and of `dev`, numbered in this order: from files, or from the tagger."""

    def __init__(self, data: schema.Data) -> None:
        self._corpora = [*data.train, data.dev]
        self._name, self._language = data.tagger.name, data.tagger.language or data.source_language

    @cached_property
    def _files(self) -> dict[int, TagFile]:
        return {number: TagFile(corpus.tags) for number, corpus in enumerate(self._corpora) if corpus.tags is not None}

    def check(self, progress: bool) -> None:
        """Check all given tags against their texts, and that there is a tagger for the other corpora.

        Raises:
            UserError: tags do not fit their text, or there is no tagger.
        """
        for number, file in self._files.items():
            if file.warning is not None:
                notify(file.warning)
            given = self.given(number)
            assert given is not None
            for _ in progress_over(given, "checking tags", shown=progress):
                pass
        if len(self._files) < len(self._corpora):
            self._open_tagger()

    def given(self, number: int) -> Iterator[TaggedSentence] | None:
        """The tags that are given beside a corpus, line by line; None if there are none.

        Raises:
            UserError: they do not fit the text.
        """
        if number not in self._files:
            return None
        source = self._corpora[number].source
        return self._files[number].sentences(source, read_lines(source))

    def dev_lines(self) -> Iterator[str]:
        """The tags of `dev` for validation: the lines of the given file, or lines of ``word_TAG``."""
        dev = self._corpora[-1]
        if dev.tags is not None:
            yield from read_lines(dev.tags)
            return
        tagger = self._open_tagger()
        for line in read_lines(dev.source):
            words = tagger.tokenize(line)
            yield format_tagged_line(TaggedSentence(tuple(words), tuple(tagger.tag(words))))

    def source_tagger(self, tokenizer: Tokenizer) -> SourceTagger:
        """The choice of the tagger that is saved with the data."""
        tagset = next((file.tagset for file in self._files.values()), None)
        chosen = SourceTagger(tokenizer, name=self._name, language=self._language, given_tagset=tagset)
        if len(self._files) < len(self._corpora):
            chosen.tagger()
        return chosen

    def _open_tagger(self) -> Tagger:
        return open_tagger_for_text(self._name, self._language, "data.tagger")
