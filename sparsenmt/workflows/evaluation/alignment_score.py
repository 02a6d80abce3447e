"""Score word alignments against those of people: alignments in a file, or those of a model along given translations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparsenmt.data.text import StrPath
from sparsenmt.data.word_links import Link, WordLinks, parse_links, words_of
from sparsenmt.decoding.alignment import AttentionHeads, ReadTarget, align_targets, guided_heads
from sparsenmt.decoding.inputs import cut_warning, read_sources, warn_of_sources
from sparsenmt.evaluation.alignment_error import AlignmentError
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.workflows.evaluation.score import ModelUse, model_use, read_columns

_LINES = 128  # that are aligned together


def score_alignments(alignments: StrPath, gold: StrPath) -> AlignmentError:
    """Compare a file of alignments with a gold one, line by line.

    Raises:
        UserError: a file cannot be read, has a line that is no alignment, or other lines than the other one.
    """

    def read(lines: Sequence[str], path: StrPath) -> Iterator[WordLinks]:
        return (parse_links(line, f"{path}, line {number:,}") for number, line in enumerate(lines, start=1))

    pairs = zip(*map(read, read_columns([alignments, gold]), (alignments, gold)), strict=True)
    return AlignmentError.of(((*own.sure, *own.possible), each) for own, each in pairs)


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
    use = model_use(use)
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
