"""The output of `decode` for an input line or a block of lines: text, n-best lists, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparsenmt.data.documents import DocumentBlock
from sparsenmt.decoding.documents import BlockTranslation
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.translate import TranslatedLine
from sparsenmt.workflows.decoding.aligned_output import AlignedLine, AlignmentKind, alignment_as_json


@dataclass(frozen=True)
class OutputFormat:
    """The form of the output lines of an input line.

    Args:
        n_best: hypotheses to write.
        as_json: a JSON object for each line.
        alignments: how alignments are written; None: not at all.
        several_lines: True: an output may have several lines, which are escaped.
    """

    n_best: int = 1
    as_json: bool = False
    alignments: AlignmentKind | None = None
    several_lines: bool = False


def render_line(
    translation: TranslatedLine, form: OutputFormat, aligned: AlignedLine | None = None, source: str | None = None
) -> list[str]:
    """Return the output lines of one input line.

    Args:
        aligned: the translation with its alignments; None: without.
        source: the line as it was read, if the model read another text.
    """
    n_best, as_json = form.n_best, form.as_json or form.alignments == "soft"
    texts = translation.best_texts(n_best) if aligned is None else aligned.texts
    if form.several_lines and not as_json:
        texts = [text.replace("\\", "\\\\").replace("\n", "\\n") for text in texts]
    links = [""] * len(texts)
    if aligned is not None and form.alignments == "hard":
        links = [f" ||| {pair.alignment}" for pair in aligned.pairs]
    if n_best == 1 and not as_json:
        return [text + link for text, link in zip(texts, links, strict=True)]
    pairs = list(zip(texts, translation.hypotheses[:n_best], strict=True))
    number = translation.source.number
    if not as_json:
        ranks = [each.score if each.utility is None else each.utility for _, each in pairs]
        written = zip(texts, ranks, links, strict=True)
        return [f"{number} ||| {text} ||| {rank:.6f}{link}" for text, rank, link in written]
    hypotheses = [{"text": text, **hypothesis.scores} for text, hypothesis in pairs]
    text = translation.source.text if source is None else source
    line: dict[str, Any] = {"line": number + 1, "source": text, "hypotheses": hypotheses}
    if aligned is not None and form.alignments is not None:
        line["source_words"] = list(aligned.pairs[0].source.words)
        for each, pair in zip(hypotheses, aligned.pairs, strict=True):
            each.update(alignment_as_json(pair, form.alignments))
    if translation.depth is not None:
        line["encoder_layers"], line["decoder_layers"] = translation.depth
    return [json.dumps(line, ensure_ascii=False, allow_nan=False)]


def render_block(found: BlockTranslation, n_best: int, as_json: bool) -> list[str]:
    """Return the output lines of a block: one for each line, or up to ``n_best`` for each, or one JSON object."""
    if n_best == 1 and not as_json:
        return found.lines
    pairs: Sequence[tuple[list[str], Hypothesis]]
    pairs = list(zip(found.texts, found.translation.hypotheses, strict=True))[:n_best]
    sentences = found.block.sentences
    if not as_json:
        return [
            f"{sentence.number} ||| {texts[index]} ||| {hypothesis.score:.6f}"
            for index, sentence in enumerate(sentences)
            for texts, hypothesis in pairs
        ]
    hypotheses = [{"texts": texts, **hypothesis.scores} for texts, hypothesis in pairs]
    source = [sentence.texts[0] for sentence in sentences]
    line = {**block_place(found.block), "source": source, "hypotheses": hypotheses}
    return [json.dumps(line, ensure_ascii=False, allow_nan=False)]


def block_place(block: DocumentBlock) -> dict[str, Any]:
    """Return the place of a block in its text, for JSON."""
    return {"line": block.first + 1, "lines": len(block.sentences), "document": block.document}
