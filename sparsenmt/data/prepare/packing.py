"""A corpus as `prepare` packs it into blocks: its pairs, those that the filters leave, and what stands beside them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import count, islice

from sparsenmt.data.documents import BlockSentence, DocumentBlock, Packer, read_ids
from sparsenmt.data.prepare.filters import EncodedPairs
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

Rows = list[tuple[str, ...]]


def pack_corpus(
    corpus: schema.Corpus,
    pairs: Iterable[tuple[int, Rows, EncodedPairs]],
    tokenizers: Tokenizers,
    documents: schema.Documents,
    tags: Iterable[TaggedSentence] | None = None,
) -> Iterator[DocumentBlock]:
    """The blocks of a corpus; of one without ids, every pair is a block.

    Args:
        pairs: of lines after each other the number of the first, from 0, their text, and those of them to pack.
        tags: of every line of the source.

    Raises:
        UserError: a text has the separator in it; or as `Packer`.
    """
    packer = Packer((tokenizers.source, tokenizers.target), documents.separator, documents.max_length)

    def sentences() -> Iterator[BlockSentence]:
        ids: Iterator[Hashable] = count() if corpus.documents is None else read_ids(corpus.documents)
        tagged = None if tags is None else iter(tags)
        for first, rows, kept in pairs:
            ids_here = list(islice(ids, len(rows)))
            tags_here = None if tagged is None else list(islice(tagged, len(rows)))
            for number, source, target in zip(kept.lines, kept.source, kept.target, strict=True):
                place = number - first
                beside = None if tags_here is None else tags_here[place]
                sentence = BlockSentence(number, ids_here[place], rows[place], (source, target), beside)
                if packer.holds_separator(sentence):
                    raise UserError(
                        f"the text holds the separator '{documents.separator}' of the blocks",
                        where=f"{corpus.source} or {corpus.target}, line {number + 1:,}",
                        hint="Take another word as `data.documents.separator`.",
                    )
                yield sentence

    return packer.blocks(sentences())
