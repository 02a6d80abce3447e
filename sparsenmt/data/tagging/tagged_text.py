"""Tagged text: CoNLL-U files, and lines of ``word_TAG`` between spaces.

CoNLL-U is recognised by its first line: a comment, or ten columns. Language-specific tags (XPOS) are preferred to
universal ones (UPOS), word by word. A multiword token ("zum" for "zu dem") is one word with the first tag, unless the
words are just its parts ("don't": "do", "n't"). In ``word_TAG`` text the tag follows the last underscore, and the Penn
Treebank's replacements of brackets and quotes, if tagged as such, are read as the original characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile

from sparsenmt.data.tagging.tagsets import TagSet, guess_tagset, is_known_tag, unknown_tags_warning
from sparsenmt.data.tagging.word_alignment import comparable_text
from sparsenmt.data.text import LONGEST_LINE, StrPath, pair_lines, read_lines
from sparsenmt.errors import UserError

_COLUMNS = 10
_ID, _FORM, _UPOS, _XPOS, _MISC = 0, 1, 3, 4, 9
_PENN_REPLACEMENTS = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"',
}  # fmt: skip


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    """One for each word."""
    line: int = 0
    """First line in its file, from 1; 0: not from a file."""
    text: str | None = None
    """The original text if known: from CoNLL-U's ``# text`` or ``SpaceAfter``."""
    tagset: TagSet | None = None
    """None: unknown; each tag is then looked up in the first tag set that contains it."""


def read_tagged(path: StrPath) -> Iterator[TaggedSentence]:
    """Read the sentences of a tagged file, plain or gzipped; the format is detected from its first line.

    Raises:
        UserError: a line is malformed; or as `read_lines`.
    """
    lines = enumerate(read_lines(path), start=1)
    number, start = 0, ""
    while (found := next(lines, None)) is not None:
        number, start = found
        if start.strip():
            break
    is_comment = start.startswith("#") and _split(start.split()[0]) is None
    reader = _read_columns if is_comment or start.count("\t") == _COLUMNS - 1 else _read_underscores
    # Blank lines before the first sentence are not kept: a small gzip file may begin with any number of them.
    first = chain(((blank, "") for blank in range(1, number)), [(number, start)] if number else [])
    return reader(chain(first, lines), str(path))


class TagFile:
    """A tagged file that belongs to a text, sentence n to line n. It is read once to find its tag set.

    Args:
        path: see `read_tagged`.
        expected: a tag set that is used if it contains all tags; otherwise the set that contains most tags is used.

    Raises:
        UserError: as `read_tagged`.
    """

    def __init__(self, path: StrPath, expected: TagSet | None = None) -> None:
        self.path = path
        counts: Counter[str] = Counter()
        for sentence in read_tagged(path):
            counts.update(sentence.tags)
        fits = expected is not None and all(is_known_tag(tag, expected) for tag in counts)
        self.tagset: TagSet = expected if fits and expected is not None else guess_tagset(counts.elements())
        self.warning = unknown_tags_warning(counts, self.tagset, str(path))
        """A warning that lists unknown tags; None if there are none."""

    def sentences(self, text: StrPath, lines: Iterable[str], first: int = 0) -> Iterator[TaggedSentence]:
        """The sentences that belong to the lines of a text, each checked against its line.

        Args:
            text: the name of the text in messages.
            lines: the text from line ``first`` (from 0) on.

        Raises:
            UserError: the numbers of sentences and lines differ; the words of a sentence differ from its line; or as
                `read_tagged`.
        """
        pairs = pair_lines(read_tagged(self.path), lines, first, partial(self._check_count, text))
        for number, (sentence, line) in enumerate(pairs, start=first + 1):
            _check_words(sentence, line, f"{self.path}, line {sentence.line:,}", f"line {number:,} of {text}")
            yield replace(sentence, tagset=self.tagset)

    def _check_count(self, text: StrPath, sentences: int, lines: int) -> None:
        if sentences != lines:
            raise UserError(
                f"{sentences:,} tagged sentences, but {text} has {lines:,} lines",
                where=str(self.path),
                hint="Sentence n of the tags must belong to line n of the text.",
            )


def _check_words(sentence: TaggedSentence, line: str, where: str, line_name: str) -> None:
    """Check that tagged words are those of a line, up to white space, case and Unicode compatibility forms."""
    tagged, written = comparable_text("".join(sentence.words)), comparable_text(line)
    if tagged == written:
        return
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tagged, written, strict=False)))
    found, wanted = tagged[start : start + 20] or "the end", written[start : start + 20] or "the end"
    raise UserError(
        f"the {len(sentence.words):,} tagged words are not those of {line_name}: {found!r} instead of {wanted!r}",
        where=where,
        hint="Every line of the text needs tags for exactly its words.",
    )


# word_TAG


def format_tagged_line(sentence: TaggedSentence) -> str:
    """Format a sentence as a line of ``word_TAG``; white space inside words is removed."""
    words = ("".join(word.split()) for word in sentence.words)
    return " ".join(f"{word}_{tag}" for word, tag in zip(words, sentence.tags, strict=True) if word)


def _read_underscores(lines: Iterable[tuple[int, str]], path: str) -> Iterator[TaggedSentence]:
    for number, line in lines:
        words: list[str] = []
        tags: list[str] = []
        for item in line.split():
            parts = _split(item)
            if parts is None:
                raise UserError(
                    f"{item[:40]!r} has no tag",
                    where=f"{path}, line {number:,}",
                    hint="Write word_TAG for every word, with spaces between them, or name a CoNLL-U file.",
                )
            word, tag = parts
            is_replacement = word in _PENN_REPLACEMENTS and (tag == word or tag in "()")
            words.append(_PENN_REPLACEMENTS[word] if is_replacement else word)
            tags.append(tag)
        yield TaggedSentence(tuple(words), tuple(tags), number)


def _split(item: str) -> tuple[str, str] | None:
    word, _, tag = item.rpartition("_")
    return (word, tag) if word and tag else None


# CoNLL-U


def _read_columns(lines: Iterable[tuple[int, str]], path: str) -> Iterator[TaggedSentence]:
    block: list[tuple[int, list[str]]] = []
    text: str | None = None
    size = 0
    for number, line in chain(lines, [(0, "")]):
        line = line.removesuffix("\r")
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            text = value.strip() if key.strip() == "text" else text
        elif line.strip():
            columns = line.split("\t")
            if len(columns) != _COLUMNS:
                raise UserError(
                    f"{len(columns)} columns with tabs between them, not the {_COLUMNS} of CoNLL-U",
                    where=f"{path}, line {number:,}",
                    hint="Use a tool that writes CoNLL-U; an empty column is an underscore.",
                )
            size += len(line)
            if size > LONGEST_LINE:
                raise UserError(
                    f"the sentence is longer than {LONGEST_LINE:,} characters",
                    where=f"{path}, line {number:,}",
                    hint="End every sentence with an empty line, as in CoNLL-U.",
                )
            block.append((number, columns))
        elif block:
            yield _sentence(block, text)
            block, text, size = [], None, 0


def _sentence(block: Sequence[tuple[int, list[str]]], text: str | None) -> TaggedSentence:
    rows = [columns for _, columns in block if "." not in columns[_ID]]  # 8.1: an empty node, not a word of the text
    words: list[str] = []
    tags: list[str] = []
    written: list[str] = []
    position = 0
    while position < len(rows):
        row = rows[position]
        position += 1
        parts = [row]
        if "-" in row[_ID]:  # 4-5: a multiword token, followed by the words 4 and 5
            parts = list(_words_of(row[_ID], map(rows.__getitem__, range(position, len(rows)))))
            position += len(parts)
            if not parts or "".join(part[_FORM] for part in parts) != row[_FORM]:
                parts = [[*row[:_UPOS], *(parts or [row])[0][_UPOS : _XPOS + 1], *row[_XPOS + 1 :]]]
        for part in parts:
            words.append(part[_FORM])
            tags.append(part[_XPOS] if part[_XPOS] != "_" else part[_UPOS])
        written += [row[_FORM], "" if "SpaceAfter=No" in row[_MISC].split("|") else " "]
    first = block[0][0]
    return TaggedSentence(tuple(words), tuple(tags), first, "".join(written).strip() if text is None else text)


def _words_of(span: str, rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows of the words of a multiword token with the span "4-5"."""
    last = span.partition("-")[2]
    for row in rows:
        if "-" in row[_ID]:
            return
        yield row
        if row[_ID] == last:
            return
