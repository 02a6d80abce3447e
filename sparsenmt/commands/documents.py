"""``--documents``: the ids of the documents that the input of `decode` and `score` is made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.commands.decode_bar import Bar
    from sparsenmt.data.documents import DocumentBlock
    from sparsenmt.data.tagging.tagged_text import TaggedSentence
    from sparsenmt.decoding.documents import BlockTranslation, Mismatches
    from sparsenmt.decoding.forced import PairScore
    from sparsenmt.decoding.translate import Translation
    from sparsenmt.recipe.schema import Decoding, Documents
    from sparsenmt.store import Bundle

HELP = "File with the document id of every line: where it changes, a document ends."


class GivenDocuments:
    """A file of document ids beside the lines of a text.

    Args:
        path: the file; must be one that can be read more than once.
        text: what messages call the text.
    """

    def __init__(self, path: Path, text: Path | str) -> None:
        from sparsenmt.data.text import check_readable

        if path.is_fifo() or path.is_char_device():
            raise UserError(
                "is a pipe or a device, which cannot be read more than once",
                where=str(path),
                hint="Write the ids into a file.",
            )
        check_readable(path)
        self.path, self._text = path, text

    def beside(self, lines: Iterable[str], first: int = 0) -> Iterator[tuple[str, str]]:
        """The text's lines, from line ``first`` (from 0) on, and their ids; UserError where they do not fit."""
        from sparsenmt.data.documents import ids_beside

        return ids_beside(self.path, self._text, lines, first)

    def check(self, lines: Iterable[str]) -> list[str]:
        """All ids; UserError where they do not fit the text."""
        return [id_ for _, id_ in self.beside(lines)]


def open_documents(path: Path | str | None, text: Path | str) -> GivenDocuments | None:
    """The ids that are given, if any."""
    return None if path is None else GivenDocuments(Path(path), text)


def needed_packing(bundle: Bundle) -> Documents:
    """How a model's documents are packed.

    Raises:
        UserError: it reads single sentences.
    """
    documents = bundle.recipe.data.documents
    if documents is None:
        raise UserError(
            "there is nothing to pack: the model reads single sentences, not blocks of documents",
            where="--documents",
            hint="Leave it out; `sparsenmt score OUTPUT -r REFERENCE -m dbleu --documents IDS` scores by documents.",
        )
    return documents


def check_use(bundle: Bundle, documents: GivenDocuments | None) -> None:
    """Compare what is given with what the model reads.

    Raises:
        UserError: ids are given, and the model reads single sentences. The other way round it is a warning.
    """
    if documents is not None:
        needed_packing(bundle)
    else:
        check_single(bundle)


def check_single(bundle: Bundle) -> None:
    """Warn that a model of blocks is given single sentences."""
    if bundle.recipe.data.documents is not None:
        text = "the model was trained on blocks of sentences; here every line is read by itself (see --documents)"
        click.echo(f"warning: {text}", err=True)


def translate(
    bundle: Bundle,
    lines: Iterable[tuple[str, str]],
    options: Decoding,
    *,
    bar: Bar,
    window: int,
    first: int,
    tags: Iterable[TaggedSentence] | None,
) -> Iterator[BlockTranslation]:
    """Translate lines in blocks, showing it; at the end tell how many blocks have other sentences."""
    from sparsenmt.decoding.documents import Mismatches, translate_documents

    packing, mismatches = needed_packing(bundle), Mismatches()
    for found in translate_documents(bundle, lines, options, packing, window=window, first=first, tags=tags):
        mismatches.add(found)
        bar.warn(found.translation)
        bar.advance(len(found.block.sentences))
        yield found
    tell_mismatches(mismatches)


def translate_all(
    bundle: Bundle,
    lines: Sequence[str],
    ids: Sequence[str],
    options: Decoding,
    tags: Sequence[TaggedSentence] | None,
) -> tuple[list[str], list[Translation]]:
    """Translate a text in blocks; tell how many have other sentences.

    Returns:
        the translation of every line, and those of the blocks.
    """
    from sparsenmt.decoding.documents import Mismatches, translate_documents

    mismatches = Mismatches()
    beside = zip(lines, ids, strict=True)
    found = [
        mismatches.add(each) for each in translate_documents(bundle, beside, options, needed_packing(bundle), tags=tags)
    ]
    tell_mismatches(mismatches)
    return [line for each in found for line in each.lines], [each.translation for each in found]


def score_blocks(
    bundle: Bundle,
    columns: tuple[list[str], list[str]],
    ids: Sequence[str],
    tags: Sequence[TaggedSentence] | None,
    batch_tokens: int,
    depth: tuple[int, int] | None,
) -> tuple[list[DocumentBlock], list[PairScore]]:
    """Forced scoring of sources and targets in blocks: the blocks, and the score of each."""
    from sparsenmt.decoding.documents import pack_pairs, tags_of
    from sparsenmt.decoding.forced import score_pairs

    blocks = pack_pairs(bundle, *columns, ids, needed_packing(bundle), tags=tags)
    sources, targets = ([block.texts[side] for block in blocks] for side in (0, 1))
    numbers = [block.first for block in blocks]
    scores = score_pairs(
        bundle, sources, targets, tags=tags_of(blocks), numbers=numbers, batch_tokens=batch_tokens, depth=depth
    )
    return blocks, list(scores)


def place(block: DocumentBlock) -> dict[str, Any]:
    """Where a block stands in its text, for JSON."""
    return {"line": block.first + 1, "lines": len(block.sentences), "document": block.document}


def tell_mismatches(mismatches: Mismatches) -> None:
    """Say how many blocks came back with another number of sentences, if any did."""
    warning = mismatches.warning()
    if warning is not None:
        click.echo(warning, err=True)


def render(found: BlockTranslation, n_best: int, as_json: bool) -> list[str]:
    """The output lines of a block: one for each line; n-best: up to N for each line; JSON: an object for the block."""
    block = found.block
    pairs = list(zip(found.texts, found.translation.hypotheses, strict=True))[:n_best]
    if as_json:
        hypotheses = [
            {
                "texts": texts,
                "score": h.score,
                "log_probability": h.log_probability,
                "pieces": len(h.tokens),
                "ended": h.ended,
            }
            for texts, h in pairs
        ]
        source = [sentence.texts[0] for sentence in block.sentences]
        line = {**place(block), "source": source, "hypotheses": hypotheses}
        return [json.dumps(line, ensure_ascii=False, allow_nan=False)]
    if n_best > 1:
        return [
            f"{sentence.number} ||| {texts[index]} ||| {h.score:.6f}"
            for index, sentence in enumerate(block.sentences)
            for texts, h in pairs
        ]
    return found.lines
