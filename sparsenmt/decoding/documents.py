"""Translation of documents: sentences go through the model in blocks, and each line gets its own translation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.documents import (
    BlockPacker,
    BlockSentence,
    DocumentBlock,
    fit_to_line_count,
    separator_id,
    split_block,
)
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.text import bounded_batches, text_windows
from sparsenmt.decoding.translate import TranslatedLine, one_line, translate_lines
from sparsenmt.recipe import schema

WINDOW = 256
"""Blocks that are sorted by length together."""
_LINES = 1000  # that are tokenized together
_CHARACTERS = 16_000_000  # of the blocks of a window, which hold their tokens


@dataclass(frozen=True)
class BlockTranslation:
    """The output for one block of lines.

    Args:
        translation: of the block as one line; scores and log-probabilities are the block's.
        texts: one text for each line of the block, for every hypothesis, best first.
        surplus: sentences of the best hypothesis minus those of the block.
    """

    block: DocumentBlock
    translation: TranslatedLine
    texts: list[list[str]]
    surplus: int

    @property
    def lines(self) -> list[str]:
        """The best translation of every line."""
        return self.texts[0]


@dataclass
class Mismatches:
    """Counters of blocks, and of those whose translations have another number of sentences."""

    blocks: int = 0
    differing: int = 0
    missing: int = 0
    surplus: int = 0

    def add(self, found: BlockTranslation) -> None:
        """Count a block."""
        self.blocks += 1
        self.differing += found.surplus != 0
        self.missing += max(-found.surplus, 0)
        self.surplus += max(found.surplus, 0)

    def merge(self, other: Mapping[str, int]) -> None:
        """Add the counters of other blocks, by name."""
        self.blocks += other["blocks"]
        self.differing += other["differing"]
        self.missing += other["missing"]
        self.surplus += other["surplus"]

    def warning(self) -> str | None:
        """Return one line about the differing blocks; None if there are none."""
        if not self.differing:
            return None
        parts = [f"{self.missing:,} missing, now empty lines"] if self.missing else []
        parts += [f"{self.surplus:,} too many, joined to the last line of their block"] if self.surplus else []
        blocks = f"{self.differing:,} of {self.blocks:,} blocks came back with another number of sentences"
        return f"warning: {blocks}: {'; '.join(parts)}"


def translate_documents(
    bundle: Bundle,
    lines: Iterable[InputLine],
    options: schema.Decoding,
    documents: schema.Documents,
    *,
    window: int = WINDOW,
) -> Iterator[BlockTranslation]:
    """Translate lines in blocks of sentences, in order.

    Args:
        lines: lines with their documents; a document ends where the id changes. A run that resumes after a whole window
            gives the same translations as an uninterrupted one.
        window: blocks that are read ahead and sorted by length together.

    Raises:
        UserError: as `translate_lines`; or the separator is not in the vocabulary.
    """
    for batch in block_windows(bundle, lines, documents, window=window):
        yield from translate_blocks(bundle, batch, options, documents)


def block_windows(
    bundle: Bundle, lines: Iterable[InputLine], documents: schema.Documents, *, window: int = WINDOW
) -> Iterator[list[DocumentBlock]]:
    """Pack lines into blocks, in windows; arguments are those of `translate_documents`."""
    limit = min(documents.source_length or documents.max_length, bundle.max_source_length + 1)
    packer = BlockPacker([bundle.tokenizers.source], documents.separator, limit)
    blocks = packer.blocks(_sentences(bundle, lines))
    yield from text_windows(blocks, window, lambda block: len(block.texts[0]), characters=_CHARACTERS)


def translate_blocks(
    bundle: Bundle, blocks: Sequence[DocumentBlock], options: schema.Decoding, documents: schema.Documents
) -> Iterator[BlockTranslation]:
    """Translate the blocks of a window; arguments are those of `translate_documents`."""
    separator = separator_id(bundle.tokenizers.target, documents.separator)
    found = translate_lines(bundle, source_lines(blocks), options.undivided, window=len(blocks))
    for block, translation in zip(blocks, found, strict=True):
        count, target = len(block.sentences), bundle.tokenizers.target
        split = [split_block(each.tokens, target, separator, each.copied) for each in translation.hypotheses]
        texts = [[one_line(text) for text in fit_to_line_count(each, count)] for each in split]
        yield BlockTranslation(block, translation, texts, len(split[0]) - count)


def translate_aligned(
    bundle: Bundle,
    lines: Iterable[InputLine],
    options: schema.Decoding,
    packing: schema.Documents | None,
    advance: Callable[[int], object] | None = None,
) -> tuple[list[str], list[TranslatedLine]]:
    """Translate lines one by one, or in blocks of documents as ``packing`` says.

    Returns:
        a text for every line; the translations, of lines or of blocks.
    """
    if packing is None:
        found = list(translate_lines(bundle, lines, options, advance=advance))
        return [each.text for each in found], found
    texts: list[str] = []
    blocks: list[TranslatedLine] = []
    for block in translate_documents(bundle, lines, options, packing):
        texts += block.lines
        blocks.append(block.translation)
        if advance is not None:
            advance(len(block.lines))
    return texts, blocks


def pack_pairs(
    bundle: Bundle, sources: Sequence[InputLine], targets: Sequence[str], documents: schema.Documents
) -> list[DocumentBlock]:
    """Pack line-aligned pairs into blocks, as `prepare` packs a corpus: for forced scoring.

    Args:
        sources: lines with their documents.
        targets: one translation of each source.

    Raises:
        UserError: the separator is not in a vocabulary.
    """
    tokenizers = bundle.tokenizers
    limit = min(documents.max_length, bundle.max_source_length + 1)
    packer = BlockPacker([tokenizers.source, tokenizers.target], documents.separator, limit)
    encoded = tokenizers.source.encode_batch([line.text for line in sources]), tokenizers.target.encode_batch(targets)
    rows = zip(sources, targets, *encoded, strict=True)
    return list(
        packer.blocks(
            BlockSentence(line.number, line.document, (line.text, target), (ours, theirs), _tags_of(bundle, line))
            for line, target, ours, theirs in rows
        )
    )


def source_lines(blocks: Sequence[DocumentBlock]) -> list[InputLine]:
    """Return the source sides of blocks as input lines, numbered by the first line of each block."""
    return [InputLine(block.first, block.texts[0], block.tags) for block in blocks]


def _sentences(bundle: Bundle, lines: Iterable[InputLine]) -> Iterator[BlockSentence]:
    for rows in bounded_batches(lines, lambda line: len(line.text), most=_LINES):
        encoded = bundle.tokenizers.source.encode_batch([line.text for line in rows])
        for line, ids in zip(rows, encoded, strict=True):
            yield BlockSentence(line.number, line.document, (line.text,), (ids,), _tags_of(bundle, line))


def _tags_of(bundle: Bundle, line: InputLine) -> TaggedSentence | None:
    """Return the tags of a line, given or computed; None where no method reads tags and none are given."""
    tagger = bundle.features.source_tagger
    return tagger.tag(line.text) if line.tags is None and tagger is not None else line.tags
