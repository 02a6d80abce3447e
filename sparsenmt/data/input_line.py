"""A line of input text together with what is given beside it: its number, part-of-speech tags, document, target prefix.

Lines are made once, where text enters the program; everything behind that point passes `InputLine` values on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import tee

from sparsenmt.data.documents import check_id_count, read_document_ids
from sparsenmt.data.tagging.tagged_text import TagFile, TaggedSentence
from sparsenmt.data.terminology import Term, known_tokens
from sparsenmt.data.text import StrPath, pair_lines, read_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.errors import UserError, check_lists


@dataclass(frozen=True)
class InputLine:
    """One line of input.

    Args:
        number: the line's number in its text, from 0.
        text: the line without its line end.
        tags: the part-of-speech tags given for it; None: a tagger makes them where a method reads tags.
        document: the id of its document; None: unknown.
        prefix: the tokens that its translation begins with.
        terms: what must, or should, stand in its translation.
    """

    number: int
    text: str
    tags: TaggedSentence | None = None
    document: str | None = None
    prefix: tuple[int, ...] = ()
    terms: tuple[Term, ...] = ()


def input_lines(
    texts: Sequence[str],
    *,
    first: int = 0,
    tags: Sequence[TaggedSentence] | None = None,
    documents: Sequence[str] | None = None,
) -> list[InputLine]:
    """Make input lines of texts, numbered from ``first`` on; ``tags`` and ``documents`` have one entry per text."""
    check_lists(texts=texts, documents=documents)
    return [
        InputLine(
            first + i, _text(text, i), None if tags is None else tags[i], None if documents is None else documents[i]
        )
        for i, text in enumerate(texts)
    ]


def numbered_lines(texts: Iterable[str], first: int = 0) -> Iterator[InputLine]:
    """Make input lines of a stream of texts, numbered from ``first`` on."""
    check_lists(texts=texts)
    return (InputLine(first + number, _text(text, number)) for number, text in enumerate(texts))


def _text(text: object, number: int) -> str:
    """Return an item of a list of texts; TypeError if it is none, as in a column of numbers or with empty cells."""
    if not isinstance(text, str):
        raise TypeError(f"texts[{number}] is {type(text).__name__}, not str")
    return text


def attach_tags(lines: Iterable[InputLine], tags: TagFile, text: StrPath, first: int = 0) -> Iterator[InputLine]:
    """Attach a file's tags to the lines of a text, one line at a time.

    Args:
        lines: the text from line ``first`` (from 0) on.
        text: the name of the text in messages.

    Raises:
        UserError: a line's words are not those of its tags, or there are more or fewer tagged sentences than lines.
    """
    lines, copies = tee(lines)
    sentences = tags.sentences(text, (line.text for line in copies), first)
    for sentence, line in zip(sentences, lines, strict=True):  # `sentences` first: it checks the end of the text
        yield replace(line, tags=sentence)


def attach_documents(lines: Iterable[InputLine], ids: StrPath, text: StrPath, first: int = 0) -> Iterator[InputLine]:
    """Attach a file's document ids, one a line, to the lines of a text; see `attach_tags`.

    Raises:
        UserError: an id is missing, or there are more or fewer ids than lines.
    """
    for document, line in pair_lines(read_document_ids(ids), lines, first, partial(check_id_count, ids, text)):
        yield replace(line, document=document)


def attach_prefixes(
    lines: Iterable[InputLine], path: StrPath, tokenizer: Tokenizer, most: int, text: StrPath, first: int = 0
) -> Iterator[InputLine]:
    """Attach a file's target prefixes, one a line and maybe empty, to the lines of a text; see `attach_tags`.

    Args:
        tokenizer: of the target.
        most: tokens that an output can have.

    Raises:
        UserError: a prefix has unknown symbols or is too long, or there are more or fewer prefixes than lines.
    """

    def check_counts(prefixes: int, lines: int) -> None:
        if prefixes != lines:
            raise UserError(
                f"{prefixes:,} target prefixes, but {text} has {lines:,} lines",
                where=f"{path}, line {min(prefixes, lines) + 1:,}",
                hint="Prefix n must belong to line n of the text; leave a line empty where there is none.",
            )

    for (number, prefix), line in pair_lines(enumerate(read_lines(path), start=1), lines, first, check_counts):
        yield replace(line, prefix=known_tokens(prefix, tokenizer, most, f"{path}, line {number:,}"))
