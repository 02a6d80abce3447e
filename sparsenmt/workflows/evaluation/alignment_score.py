"""Score word alignments against those of people: alignments in a file, or those of a model along given translations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sparsenmt.data.text import StrPath, read_parallel
from sparsenmt.data.word_links import Link, WordLinks, parse_links, words_of
from sparsenmt.decoding.alignment import AttentionHeads, ReadTarget, align_targets, guided_heads
from sparsenmt.decoding.inputs import cut_warning, read_sources, warn_of_sources
from sparsenmt.errors import UserError
from sparsenmt.evaluation.alignment_error import AlignmentError
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.workflows.evaluation.score import ModelUse

_LINES = 128  # that are aligned together


def score_alignments(alignments: StrPath, gold: StrPath) -> AlignmentError:
    """Compare a file of alignments with a gold one, line by line.

    Raises:
        UserError: a file cannot be read, has a line that is no alignment, or other lines than the other one.
    """
    rows = list(read_parallel([str(alignments), str(gold)]))
    if not rows:
        hint = "Name the file that was meant: there is nothing to score."
        raise UserError("the file has no lines", where=str(alignments), hint=hint)

    def read(column: int, path: StrPath) -> Iterator[WordLinks]:
        for number, row in enumerate(rows, start=1):
            yield parse_links(row[column], f"{path}, line {number:,}")

    found = read(0, alignments)
    return AlignmentError.of(((*own.sure, *own.possible), each) for own, each in zip(found, read(1, gold), strict=True))


def score_model_alignments(
    use: ModelUse | StrPath, source: StrPath, target: StrPath, gold: StrPath, head: str | None = None
) -> AlignmentError:
    """Align given translations by a model's cross-attention, and compare with a gold alignment.

    Args:
        use: the model and how it runs, or its directory.
        source, target, gold: line-aligned files.
        head: ``LAYER`` or ``LAYER.HEAD``; None: the head that training guided, or the mean over the last layer.

    Raises:
        UserError: a file, the head or the model is not what it must be.
    """
    use = use if isinstance(use, ModelUse) else ModelUse(Path(use))
    (texts, translations, marks), lines, bundle, options = use.read([source, target, gold], None, use.use_processors())
    golds = []
    for number, (own, other, line) in enumerate(zip(texts, translations, marks, strict=True), start=1):
        sizes = len(words_of(own)), len(words_of(other))
        golds.append(parse_links(line, f"{gold}, line {number:,}", sizes))
    heads = guided_heads(bundle) if head is None else AttentionHeads.parse(head, "--alignment-head")
    heads.check(bundle, options, "--alignment-head")
    sources = read_sources(bundle, lines)
    warn_of_sources(bundle, sources, str(source), "read")
    targets, most = [], bundle.max_target_length
    encoded = bundle.tokenizers.target.encode_batch(translations)
    for source_line, text, ids in zip(sources, translations, encoded, strict=True):
        if len(ids) > most:
            notify(cut_warning(f"{target}, line {source_line.number + 1},", most, len(ids) - most, "read"))
        targets.append(ReadTarget(source_line, ids[:most], text))
    found: list[Sequence[Link]] = []
    with progress_bar("align", len(targets)) as advance:
        for first in range(0, len(targets), _LINES):
            part = targets[first : first + _LINES]
            found += [pair.alignment.pairs for pair in align_targets(bundle, part, options, heads)]
            advance(len(part))
    return AlignmentError.of(zip(found, golds, strict=True))
