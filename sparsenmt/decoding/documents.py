"""Documents in, translations out: sentences go through the model in blocks, and come back line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sparsenmt.data.documents import BlockSentence, DocumentBlock, Packer, realign, separator_id, split_block
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.decoding.inputs import ModelBundle
from sparsenmt.decoding.translate import Translation, one_line, translate_lines
from sparsenmt.recipe import schema

WINDOW = 256
"""Blocks that are sorted together."""
_LINES = 1000  # tokenized at once


@dataclass(frozen=True)
class BlockTranslation:
    """The output for one block of lines."""

    block: DocumentBlock
    translation: Translation
    """Of the block as one line: scores and log-probabilities are the block's."""
    texts: list[list[str]]
    """Of every hypothesis, best first, a text for each line of the block."""
    surplus: int
    """How many more sentences the best hypothesis has than the block; negative: how many fewer."""

    @property
    def lines(self) -> list[str]:
        """The best translation of every line."""
        return self.texts[0]


@dataclass
class Mismatches:
    """Blocks whose translations have another number of sentences, as they are met."""

    blocks: int = 0
    differing: int = 0
    missing: int = 0
    surplus: int = 0

    def add(self, found: BlockTranslation) -> BlockTranslation:
        """Count a block, and pass it on."""
        self.blocks += 1
        self.differing += found.surplus != 0
        self.missing += max(-found.surplus, 0)
        self.surplus += max(found.surplus, 0)
        return found

    def warning(self) -> str | None:
        """One line about them; None if there are none."""
        if not self.differing:
            return None
        parts = [f"{self.missing:,} missing, now empty lines"] if self.missing else []
        parts += [f"{self.surplus:,} too many, joined to the last line of their block"] if self.surplus else []
        blocks = f"{self.differing:,} of {self.blocks:,} blocks came back with another number of sentences"
        return f"warning: {blocks}: {'; '.join(parts)}"


def translate_documents(
    bundle: ModelBundle,
    lines: Iterable[tuple[str, str]],
    options: schema.Decoding,
    documents: schema.Documents,
    *,
    window: int = WINDOW,
    first: int = 0,
    tags: Iterable[TaggedSentence] | None = None,
) -> Iterator[BlockTranslation]:
    """Translate lines in blocks, in order.

    Args:
        lines: every line, and the id of its document; where it changes, a document ends.
        window: blocks read ahead.
        first: number of the first line, from 0. If a block, and a window, ended before it, what comes out is the same
            as without the break.
        tags: those given beside the lines; without them the model's tagger makes them, line by line, where methods
            read tags.

    Raises:
        UserError: as `translate_lines`; or the separator is not in the vocabulary.
    """
    limit = min(documents.source_length or documents.max_length, bundle.max_source_length + 1)
    packer = Packer([bundle.tokenizers.source], documents.separator, limit)
    separator = separator_id(bundle.tokenizers.target, documents.separator)
    blocks = packer.blocks(_sentences(bundle, lines, first, tags))
    while waiting := list(islice(blocks, window)):
        found = translate_lines(
            bundle,
            [block.texts[0] for block in waiting],
            options,
            window=window,
            tags=tags_of(waiting),
            numbers=[block.first for block in waiting],
        )
        for block, translation in zip(waiting, found, strict=True):
            yield _restored(block, translation, bundle.tokenizers.target, separator)


def pack_pairs(
    bundle: ModelBundle,
    sources: Sequence[str],
    targets: Sequence[str],
    ids: Sequence[str],
    documents: schema.Documents,
    *,
    tags: Sequence[TaggedSentence] | None = None,
) -> list[DocumentBlock]:
    """Line-aligned pairs in blocks, as `prepare` packs a corpus: for forced scoring.

    Args:
        ids: of every line the id of its document.
        tags: as for `translate_documents`.

    Raises:
        UserError: the separator is not in a vocabulary.
    """
    tokenizers = bundle.tokenizers
    limit = min(documents.max_length, bundle.max_source_length + 1)
    packer = Packer([tokenizers.source, tokenizers.target], documents.separator, limit)
    encoded = zip(tokenizers.source.encode_batch(sources), tokenizers.target.encode_batch(targets), strict=True)
    beside = _tagged(bundle, sources, tags)
    sentences = [
        BlockSentence(number, id_, texts, pieces, next(beside, None))
        for number, (id_, texts, pieces) in enumerate(
            zip(ids, zip(sources, targets, strict=True), encoded, strict=True)
        )
    ]
    return list(packer.blocks(sentences))


def tags_of(blocks: Sequence[DocumentBlock]) -> list[TaggedSentence] | None:
    """The tags of every block; None where there are none."""
    tags = [block.tags for block in blocks if block.tags is not None]
    return tags if tags else None


def _sentences(
    bundle: ModelBundle, lines: Iterable[tuple[str, str]], first: int, tags: Iterable[TaggedSentence] | None
) -> Iterator[BlockSentence]:
    number = first
    rest = iter(lines)
    given = None if tags is None else iter(tags)
    while rows := list(islice(rest, _LINES)):
        texts = [line for line, _ in rows]
        beside = _tagged(bundle, texts, None if given is None else list(islice(given, len(rows))))
        for (text, id_), ids in zip(rows, bundle.tokenizers.source.encode_batch(texts), strict=True):
            yield BlockSentence(number, id_, (text,), (ids,), next(beside, None))
            number += 1
    if given is not None:
        next(given, None)  # whoever checks them against the lines hears that those are at their end


def _tagged(
    bundle: ModelBundle, lines: Sequence[str], tags: Sequence[TaggedSentence] | None
) -> Iterator[TaggedSentence]:
    """The tags of every line, given or made; nothing where no method reads them."""
    if tags is not None:
        return iter(tags)
    tagging = bundle.features.tagging
    return map(tagging.tag, lines) if tagging is not None else iter(())


def _restored(block: DocumentBlock, translation: Translation, tokenizer: Tokenizer, separator: int) -> BlockTranslation:
    count = len(block.sentences)
    split = [split_block(hypothesis.tokens, tokenizer, separator) for hypothesis in translation.hypotheses]
    texts = [[one_line(text) for text in realign(each, count)] for each in split]
    return BlockTranslation(block, translation, texts, len(split[0]) - count)
