"""The tags of a recipe's corpora: given in files beside them, or made by the tagger."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import click

from sparsenmt.data.tagging.tagged_text import TagFile, TaggedSentence, as_line
from sparsenmt.data.tagging.tagging import Tagging, open_for_text
from sparsenmt.data.text import read_lines
from sparsenmt.progress import Bars
from sparsenmt.recipe import schema

if TYPE_CHECKING:
    from sparsenmt.data.tokenizers.tokenizer import Tokenizer


class CorpusTags:
    """Where the tags of the training corpora, and of `dev`, which is the last, come from."""

    def __init__(self, data: schema.Data) -> None:
        self._corpora = [*data.train, data.dev]
        self._name, self._language = data.tagger.name, data.tagger.language or data.source_language

    @cached_property
    def _files(self) -> dict[int, TagFile]:
        """The files, by the numbers of their corpora."""
        return {number: TagFile(corpus.tags) for number, corpus in enumerate(self._corpora) if corpus.tags is not None}

    def check(self, bars: Bars) -> None:
        """Read all given tags beside their texts, and see whether there is a tagger for the rest, before any work.

        Raises:
            UserError: tags do not fit their text, or there is no tagger.
        """
        for number, file in self._files.items():
            if file.warning is not None:
                click.echo(file.warning, err=True)
            given = self.beside(number)
            assert given is not None
            for _ in bars.over(given, "checking tags"):
                pass
        if len(self._files) < len(self._corpora):
            open_for_text(self._name, self._language, "data.tagger")

    def beside(self, number: int) -> Iterator[TaggedSentence] | None:
        """The tags given beside a corpus, line by line; None if there are none.

        Raises:
            UserError: they do not fit the text.
        """
        if number not in self._files:
            return None
        source = self._corpora[number].source
        return self._files[number].beside(source, read_lines(source))

    def dev_lines(self) -> Iterator[str]:
        """The tags of `dev`, for validations: the lines of the file that was given, or lines of ``word_TAG``."""
        dev = self._corpora[-1]
        if dev.tags is not None:
            yield from read_lines(dev.tags)
            return
        tagger = open_for_text(self._name, self._language, "data.tagger")
        for line in read_lines(dev.source):
            words = tagger.tokenize(line)
            yield as_line(TaggedSentence(tuple(words), tuple(tagger.tag(words))))

    def tagging(self, tokenizer: Tokenizer) -> Tagging:
        """What is kept with the data, so that other text is tagged in the same way."""
        tagset = next((file.tagset for file in self._files.values()), None)
        tagging = Tagging(tokenizer, name=self._name, language=self._language, given_tagset=tagset)
        if len(self._files) < len(self._corpora):
            tagging.tagger()
        return tagging
