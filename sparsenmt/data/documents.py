"""Documents: which lines of a text belong together, and blocks of sentences that a model reads and writes as one.

A text's documents are given as line-aligned ids: where the id changes, a document ends. A block holds sentences of one
document that follow each other, with a separator between every two; the separator is one piece of the vocabulary.
`BlockPacker` fills blocks greedily, on all sides of a corpus at the same sentence boundaries, so that

- no side of a block is longer than the limit, in pieces, separators and `</s>` included;
- a sentence that is longer than the limit stands alone, and is left to what cuts or refuses long sentences;
- a sentence without a piece on some side stands alone, so that an empty line stays one, and ends the block before it.

Where a block ends depends on nothing before its first sentence: work may stop and go on between any two blocks.

A translated block is split at its separators. If there are too few sentences, the last lines are empty; if there are
too many, those that are left over are joined to the last line: no word is lost, and every line of the source has one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.text import StrPath, read_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import UNK
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

# Ids


def read_document_ids(path: StrPath) -> Iterator[str]:
    """The document id of every line; white space around it does not count.

    Raises:
        UserError: a line has none, or a document goes on after another one has begun (the line is named); or as
            `read_lines`.
    """
    began: dict[str, int] = {}
    last = None
    for number, line in enumerate(read_lines(path), start=1):
        id_ = line.strip()
        if not id_:
            raise UserError(
                "there is no document id",
                where=f"{path}, line {number:,}",
                hint="Every line of the text needs the id of its document, an empty line too.",
            )
        if id_ != last and id_ in began:
            raise UserError(
                f"document '{id_}', which begins in line {began[id_]:,}, goes on after another one",
                where=f"{path}, line {number:,}",
                hint="The lines of a document must stand together, and every document needs an id of its own.",
            )
        began.setdefault(id_, number)
        last = id_
        yield id_


def lines_with_document_ids(
    path: StrPath, text: StrPath, lines: Iterable[str], first: int = 0
) -> Iterator[tuple[str, str]]:
    """Lines and the ids of their documents, side by side.

    Args:
        path: the ids.
        text: what messages call the text.
        lines: the text, from line ``first`` (from 0) on.

    Raises:
        UserError: there are more or fewer ids than lines; or as `read_document_ids`.
    """
    ids = read_document_ids(path)
    count = sum(1 for _ in islice(ids, first))
    rest = iter(lines)
    for line in rest:
        id_ = next(ids, None)
        if id_ is None:
            check_id_count(path, count, text, count + 1 + sum(1 for _ in rest))
            break
        count += 1
        yield line, id_
    else:
        check_id_count(path, count + sum(1 for _ in ids), text, count)


def check_id_count(path: StrPath, ids: int, text: StrPath, lines: int) -> None:
    """Raises:
    UserError: there are not as many ids as lines.
    """
    if ids != lines:
        raise UserError(
            f"{ids:,} document ids, but {text} has {lines:,} lines",
            where=f"{path}, line {min(ids, lines) + 1:,}",
            hint="Id n must belong to line n of the text; only \\n ends a line.",
        )


# Blocks


@dataclass(frozen=True)
class BlockSentence:
    """A line of a text, or of line-aligned texts: its sides."""

    number: int
    """The line, from 0."""
    document: Hashable
    texts: tuple[str, ...]
    """Of every side."""
    ids: tuple[list[int], ...]
    """Pieces of every side, without EOS."""
    tags: TaggedSentence | None = None
    """Of the first side."""

    @property
    def is_blank(self) -> bool:
        """Whether a side holds nothing; to some tokenizers a space is a piece."""
        return any(not ids or not text.strip(" ") for ids, text in zip(self.ids, self.texts, strict=True))


@dataclass(frozen=True)
class DocumentBlock:
    """Sentences that follow each other in a document, as one."""

    sentences: tuple[BlockSentence, ...]
    texts: tuple[str, ...]
    """Of every side: the sentences, with separators between them."""
    ids: tuple[list[int], ...]
    """Pieces of every side, without EOS."""
    tags: TaggedSentence | None = None

    @property
    def first(self) -> int:
        """The line of the first sentence, from 0."""
        return self.sentences[0].number

    @property
    def document(self) -> Hashable:
        """The document that all sentences are of."""
        return self.sentences[0].document


class BlockPacker:
    """Makes blocks of sentences.

    Args:
        tokenizers: of every side.
        separator: the word between two sentences.
        limit: most pieces of a side, separators and EOS included.

    Raises:
        UserError: the separator is not one piece of a vocabulary.
    """

    def __init__(self, tokenizers: Sequence[Tokenizer], separator: str, limit: int) -> None:
        self.separator, self.limit = separator, limit
        self._tokenizers = tuple(tokenizers)
        self._separators = [separator_id(tokenizer, separator) for tokenizer in tokenizers]
        # With the pieces of the spaces around it, where a space is a piece.
        self._between = [len(tokenizer.encode(f" {separator} ")) for tokenizer in tokenizers]

    def blocks(self, sentences: Iterable[BlockSentence]) -> Iterator[DocumentBlock]:
        """All sentences in blocks, in order."""
        waiting: list[BlockSentence] = []
        for sentence in sentences:
            while waiting and not self._go_together(waiting, sentence):
                block = self._first_block(waiting)
                waiting = waiting[len(block.sentences) :]
                yield block
            waiting.append(sentence)
        while waiting:
            block = self._first_block(waiting)
            waiting = waiting[len(block.sentences) :]
            yield block

    def holds_separator(self, sentence: BlockSentence) -> bool:
        """Whether the text itself has the separator, which would be taken for the end of a sentence."""
        return any(id_ in ids for id_, ids in zip(self._separators, sentence.ids, strict=True))

    def _go_together(self, waiting: Sequence[BlockSentence], sentence: BlockSentence) -> bool:
        last = waiting[-1]
        if last.is_blank or sentence.is_blank or last.document != sentence.document:
            return False
        together = [*waiting, sentence]
        return all(
            sum(len(each.ids[side]) for each in together) + between * len(waiting) < self.limit
            for side, between in enumerate(self._between)
        )

    def _first_block(self, sentences: Sequence[BlockSentence]) -> DocumentBlock:
        """The sentences as a block; fewer, should they together have more pieces than the sum of each.

        That happens where two ways to cut a word are equally probable but for the rounding of long sums (unigram).
        """
        for count in range(len(sentences), 1, -1):
            sides = zip(*(each.texts for each in sentences[:count]), strict=True)
            texts = [f" {self.separator} ".join(side) for side in sides]
            ids = [tokenizer.encode(text) for tokenizer, text in zip(self._tokenizers, texts, strict=True)]
            if all(len(side) < self.limit for side in ids):
                return DocumentBlock(tuple(sentences[:count]), tuple(texts), tuple(ids), self._tags(sentences[:count]))
        alone = sentences[0]
        return DocumentBlock((alone,), alone.texts, alone.ids, alone.tags)

    def _tags(self, sentences: Sequence[BlockSentence]) -> TaggedSentence | None:
        """The words of all sentences; the separator is a word that no tag set knows."""
        tagged = [each.tags for each in sentences if each.tags is not None]
        if len(tagged) < len(sentences):
            return None
        words, tags = list(tagged[0].words), list(tagged[0].tags)
        for sentence in tagged[1:]:
            words += [self.separator, *sentence.words]
            tags += [self.separator, *sentence.tags]
        return TaggedSentence(tuple(words), tuple(tags), tagged[0].line, tagset=tagged[0].tagset)


def separator_id(tokenizer: Tokenizer, separator: str) -> int:
    """The separator's piece.

    Raises:
        UserError: it is none.
    """
    ids = tokenizer.encode(separator)
    if len(ids) != 1 or ids[0] == UNK:
        raise UserError(
            f"the vocabulary does not have the separator '{separator}' as one piece",
            where="data.documents.separator",
            hint="Run `sparsenmt prepare` with the recipe, which adds it to the vocabulary.",
        )
    return ids[0]


def tokenizer_settings(data: schema.Data) -> schema.TokenizerSection:
    """How vocabularies are made: with the separator of blocks, if there are any, as a piece of its own."""
    options = data.tokenizer
    if data.documents is None or data.documents.separator in options.user_symbols:
        return options
    return options.model_copy(update={"user_symbols": [*options.user_symbols, data.documents.separator]})


# From blocks back to lines


def split_block(ids: Sequence[int], tokenizer: Tokenizer, separator: int) -> list[str]:
    """The texts between the separators of a block: at least one, which may be empty."""
    parts: list[list[int]] = [[]]
    for id_ in ids:
        if id_ == separator:
            parts.append([])
        else:
            parts[-1].append(id_)
    return [tokenizer.decode(part).strip(" ") for part in parts]


def fit_to_line_count(texts: Sequence[str], count: int) -> list[str]:
    """Texts as so many lines: missing ones are empty, those that are too many are joined to the last."""
    if len(texts) <= count:
        return [*texts, *[""] * (count - len(texts))]
    return [*texts[: count - 1], " ".join(filter(None, texts[count - 1 :]))]
