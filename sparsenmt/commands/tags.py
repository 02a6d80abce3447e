"""``--tags``: part-of-speech tags that are given beside the input of `decode` and `score`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.data.tagging.tagged_text import TaggedSentence
    from sparsenmt.store import Bundle

HELP = "Part-of-speech tags beside the source: CoNLL-U or word_TAG.  [default: made by the model's tagger, if needed]"


class GivenTags:
    """A file of tags beside the lines of a text.

    Args:
        path: the file; must be one that can be read more than once.
        text: what messages call the text.
    """

    def __init__(self, path: Path, bundle: Bundle, text: Path | str) -> None:
        from sparsenmt.data.tagging.tagged_text import TagFile

        if path.is_fifo() or path.is_char_device():
            raise UserError(
                "is a pipe or a device, which cannot be read more than once",
                where=str(path),
                hint="Write the tags into a file.",
            )
        tagging = bundle.features.tagging
        self.path, self._text = path, text
        self._file = TagFile(path, tagging.given_tagset if tagging is not None else None)
        if tagging is None:
            click.echo(f"warning: {path}: the model reads no part-of-speech tags", err=True)
        elif self._file.warning is not None:
            click.echo(self._file.warning, err=True)

    def beside(self, lines: Iterable[str], first: int = 0) -> Iterator[TaggedSentence]:
        """The tags of the text's lines, from line ``first`` (from 0) on; UserError where they do not fit."""
        return self._file.beside(self._text, lines, first)

    def check(self, lines: Iterable[str]) -> None:
        """UserError where they do not fit the text, before anything is translated."""
        for _ in self.beside(lines):
            pass


def open_tags(path: Path | None, bundle: Bundle, text: Path | str) -> GivenTags | None:
    """The tags that are given, if any.

    Raises:
        UserError: they cannot be read; or the model needs tags, none are given, and its tagger is not there.
    """
    if path is not None:
        return GivenTags(path, bundle, text)
    if bundle.features.tagging is not None:
        bundle.features.tagging.tagger()
    return None


def read_tags(path: str | None, bundle: Bundle, source: str, lines: Sequence[str]) -> list[TaggedSentence] | None:
    """As `open_tags`, and all tags at once: one sentence for each of the source's lines."""
    tags = open_tags(Path(path) if path is not None else None, bundle, source)
    return list(tags.beside(lines)) if tags is not None else None


def with_tags(
    tags: GivenTags | None, lines: Iterable[str], first: int
) -> tuple[Iterable[str], Iterator[TaggedSentence] | None]:
    """The lines and their tags, both to be read side by side, line by line.

    When the lines are at their end, the tags have to be, too: UserError.
    """
    if tags is None:
        return lines, None
    from itertools import tee

    ours, theirs = tee(lines)
    return ours, tags.beside(theirs, first)
