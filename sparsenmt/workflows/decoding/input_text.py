"""The text that `decode` and `score` read: a file or standard input, with tags and document ids given beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.input_line import InputLine, attach_documents, attach_tags, numbered_lines
from sparsenmt.data.tagging.tagged_text import TagFile
from sparsenmt.data.text import check_readable, read_lines, stream_lines
from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify
from sparsenmt.recipe import schema


class UnchangedFile:
    """An input file that must not change while it is translated; ``lines``: their number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = self._stat()
        self.lines = sum(1 for _ in read_lines(path))

    def check(self) -> None:
        """Raise UserError if the file has been written to."""
        if self._stat() != self._state:
            raise UserError(
                "the text changed while it was translated",
                where=str(self.path),
                hint="Run the command again when no other process writes to it.",
            )

    def _stat(self) -> tuple[int, int, int] | None:
        """Return inode, bytes and time of the last change; None: the file is gone."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def read_text(path: Path | None) -> Iterator[str]:
    """Read the lines of a file, or of standard input."""
    return read_lines(path) if path is not None else stream_lines(sys.stdin.buffer, "stdin")


def check_companion(path: Path | None, content: str) -> None:
    """Refuse a file given beside a text that cannot be read, or not more than once.

    Args:
        content: the noun for what it holds, e.g. "tags".
    """
    if path is None:
        return
    if path.is_fifo() or path.is_char_device():
        raise UserError(
            "is a pipe or a device, which cannot be read more than once",
            where=str(path),
            hint=f"Write the {content} to a file.",
        )
    check_readable(path)


def open_tag_file(path: Path | None, bundle: Bundle) -> TagFile | None:
    """Open the tags given beside a text, with a warning about tags that the model cannot use.

    Raises:
        UserError: they cannot be read; or the model needs tags, none are given, and its tagger is not installed.
    """
    tagging = bundle.features.source_tagger
    if path is None:
        if tagging is not None:
            tagging.tagger()
        return None
    check_companion(path, "tags")
    tags = TagFile(path, tagging.given_tagset if tagging is not None else None)
    if tagging is None:
        notify(f"warning: {path}: the model reads no part-of-speech tags")
    elif tags.warning is not None:
        notify(tags.warning)
    return tags


def attach(
    texts: Iterable[str],
    name: Path | str,
    tags: TagFile | None = None,
    documents: Path | None = None,
    *,
    first: int = 0,
) -> Iterator[InputLine]:
    """Make input lines of a text, line ``first`` (from 0) on, with the tags and document ids given beside it.

    Args:
        name: the name of the text in messages.

    Raises:
        UserError: tags or ids do not fit the lines.
    """
    lines: Iterator[InputLine] = numbered_lines(texts, first)
    if tags is not None:
        lines = attach_tags(lines, tags, name, first)
    if documents is not None:
        lines = attach_documents(lines, documents, name, first)
    return lines


def packing_of(bundle: Bundle, documents: Path | None) -> schema.Documents | None:
    """Return how the model packs documents into blocks; None where lines are translated one by one.

    Raises:
        UserError: document ids are given, but the model reads single sentences. The opposite is a warning.
    """
    packing = bundle.recipe.data.documents
    if documents is None:
        warn_of_single_lines(bundle)
        return None
    if packing is None:
        raise UserError(
            "there is nothing to pack: the model reads single sentences, not blocks of documents",
            where="--documents",
            hint="Leave it out; `sparsenmt score OUTPUT -r REFERENCE -m dbleu --documents IDS` scores by documents.",
        )
    return packing


def warn_of_single_lines(bundle: Bundle) -> None:
    """Warn that a model of blocks is given single sentences."""
    if bundle.recipe.data.documents is not None:
        text = "the model was trained on blocks of sentences; here every line is read by itself (see --documents)"
        notify(f"warning: {text}")
