"""Documents: document ids, and blocks of sentences that a model reads and writes as one sequence.

The documents of a text are given as line-aligned ids: a document ends where the id changes. A block holds successive
sentences of one document, joined by a separator, which is one token of the vocabulary. `BlockPacker` fills blocks
greedily, on all sides of a corpus at the same sentence boundaries, so that

- no side of a block is longer than the limit, in tokens, separators and `</s>` included;
- a sentence that is longer than the limit is a block of its own, and later truncated or refused like a long sentence;
- a sentence that is blank on some side is a block of its own, so that an empty line stays empty.

The end of a block depends on nothing before its first sentence: work can be resumed between any two blocks.

A translated block is split at its separators. If there are too few sentences, the last lines are empty; surplus
sentences are appended to the last line. So no word is lost, and every source line has a translation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.text import StrPath, read_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import UNK
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

# Document ids


def read_document_ids(path: StrPath) -> Iterator[str]:
    """Read the document id of every line, without surrounding white space.

    Raises:
        UserError: a line has no id, or the lines of a document do not stand together; or as `read_lines`.
    """
    began: dict[str, int] = {}
    last = None
    for number, line in enumerate(read_lines(path), start=1):
        id_ = line.strip()
        if not id_:
            raise UserError(
                "the document id is missing",
                where=f"{path}, line {number:,}",
                hint="Every line of the text needs the id of its document, even an empty line.",
            )
        if id_ != last and id_ in began:
            raise UserError(
                f"document '{id_}', which begins in line {began[id_]:,}, continues after another document",
                where=f"{path}, line {number:,}",
                hint="The lines of a document must be consecutive, and every document needs an id of its own.",
            )
        began.setdefault(id_, number)
        last = id_
        yield id_


def check_id_count(path: StrPath, text: StrPath, ids: int, lines: int) -> None:
    """Check that there are as many document ids as lines of a text.

    Raises:
        UserError: the numbers differ.
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
    """A line of a text, or of several line-aligned texts, its sides."""

    number: int
    """The line number, from 0."""
    document: Hashable
    texts: tuple[str, ...]
    """The text of every side."""
    ids: tuple[list[int], ...]
    """The token ids of every side, without EOS."""
    tags: TaggedSentence | None = None
    """The tags of the first side."""

    @property
    def is_blank(self) -> bool:
        """True if a side is empty or only white space, which is tokens to some tokenizers."""
        return any(not ids or not text.strip() for ids, text in zip(self.ids, self.texts, strict=True))


@dataclass(frozen=True)
class DocumentBlock:
    """Successive sentences of a document, joined by separators."""

    sentences: tuple[BlockSentence, ...]
    texts: tuple[str, ...]
    """The text of every side."""
    ids: tuple[list[int], ...]
    """The token ids of every side, without EOS."""
    tags: TaggedSentence | None = None

    @property
    def first(self) -> int:
        """The line number of the first sentence, from 0."""
        return self.sentences[0].number

    @property
    def document(self) -> Hashable:
        """The document of all sentences."""
        return self.sentences[0].document


class BlockPacker:
    """Packs sentences into blocks.

    Args:
        tokenizers: of every side.
        separator: the word between two sentences.
        limit: largest number of tokens of a side, separators and EOS included.

    Raises:
        UserError: the separator is not a single token of a vocabulary.
    """

    def __init__(self, tokenizers: Sequence[Tokenizer], separator: str, limit: int) -> None:
        self.separator, self.limit = separator, limit
        self._tokenizers = tuple(tokenizers)
        self._separators = [separator_id(tokenizer, separator) for tokenizer in tokenizers]
        # The separator with the spaces around it, if spaces are tokens.
        self._separator_lengths = [len(tokenizer.encode(f" {separator} ")) for tokenizer in tokenizers]

    def blocks(self, sentences: Iterable[BlockSentence]) -> Iterator[DocumentBlock]:
        """Pack all sentences, in order."""
        pending: list[BlockSentence] = []
        for sentence in chain(sentences, [None]):
            while pending and (sentence is None or not self._fits(pending, sentence)):
                block = self._first_block(pending)
                pending = pending[len(block.sentences) :]
                yield block
            if sentence is not None:
                pending.append(sentence)

    def holds_separator(self, sentence: BlockSentence) -> bool:
        """True if the text contains the separator, which would be taken for a sentence boundary."""
        return any(id_ in ids for id_, ids in zip(self._separators, sentence.ids, strict=True))

    def _fits(self, pending: Sequence[BlockSentence], sentence: BlockSentence) -> bool:
        """True if a sentence can join the block of the pending ones."""
        last = pending[-1]
        if last.is_blank or sentence.is_blank or last.document != sentence.document:
            return False
        together = [*pending, sentence]
        return all(
            sum(len(each.ids[side]) for each in together) + separator * len(pending) < self.limit
            for side, separator in enumerate(self._separator_lengths)
        )

    def _first_block(self, sentences: Sequence[BlockSentence]) -> DocumentBlock:
        """Join the sentences to a block; fewer of them if the joined text has more tokens than its parts.

        That happens if two segmentations of a word are equally probable except for rounding (unigram models).
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
        """The tags of all sentences; the separator is a word with an unknown tag."""
        tagged = [each.tags for each in sentences if each.tags is not None]
        if len(tagged) < len(sentences):
            return None
        words, tags = list(tagged[0].words), list(tagged[0].tags)
        for sentence in tagged[1:]:
            words += [self.separator, *sentence.words]
            tags += [self.separator, *sentence.tags]
        return TaggedSentence(tuple(words), tuple(tags), tagged[0].line, tagset=tagged[0].tagset)


def separator_id(tokenizer: Tokenizer, separator: str) -> int:
    """The token id of the separator.

    Raises:
        UserError: it is not a single token.
    """
    ids = tokenizer.encode(separator)
    if len(ids) != 1 or ids[0] == UNK:
        raise UserError(
            f"the separator '{separator}' is not a single token of the vocabulary",
            where="data.documents.separator",
            hint="Run `sparsenmt prepare` with the recipe, which adds it to the vocabulary.",
        )
    return ids[0]


def tokenizer_settings(data: schema.Data) -> schema.TokenizerSection:
    """The recipe's tokenizer section, with the separator of blocks and the tags of corpora as user symbols."""
    options = data.tokenizer
    wanted = [corpus.tag_token for corpus in data.train if corpus.tag_token is not None]
    wanted += [data.documents.separator] if data.documents is not None else []
    symbols = list(dict.fromkeys([*options.user_symbols, *wanted]))
    return options if symbols == options.user_symbols else options.model_copy(update={"user_symbols": symbols})


# Translated blocks


def split_block(ids: Sequence[int], tokenizer: Tokenizer, separator: int, unknown: Sequence[str] = ()) -> list[str]:
    """The texts between the separators of a block: at least one, possibly empty.

    unknown: as for `Tokenizer.decode`.
    """
    texts = iter(unknown)
    parts: list[list[int]] = [[]]
    for id_ in ids:
        if id_ == separator:
            parts.append([])
        else:
            parts[-1].append(id_)
    own = [list(islice(texts, part.count(UNK))) for part in parts]
    return [tokenizer.decode(part, unknown).strip(" ") for part, unknown in zip(parts, own, strict=True)]


def fit_to_line_count(texts: Sequence[str], count: int) -> list[str]:
    """Exactly ``count`` lines: missing texts become empty lines, surplus ones are appended to the last line."""
    if len(texts) <= count:
        return [*texts, *[""] * (count - len(texts))]
    return [*texts[: count - 1], " ".join(filter(None, texts[count - 1 :]))]
