"""Sentences with their kept and dropped words marked.

Shapes: S source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparsenmt.analysis.gates import NO_FILTER, GatedLine, overall_rate
from sparsenmt.analysis.labels import shown_tokens
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.errors import printable
from sparsenmt.report.plots import ShadedText, shaded_texts
from sparsenmt.report.tables import Report, Table, columns

Paint = Callable[[str, bool], str]
"""Marks a stretch of text: (text, dropped) -> text."""


def brackets(text: str, dropped: bool) -> str:
    """Mark dropped text by brackets."""
    return f"[{text}]" if dropped else text


def measure_annotations(session: AnalysisSession, *, paint: Paint = brackets) -> AnalysisResult:
    """Make the report ``annotate``; ``paint`` marks kept and dropped text."""
    notes = session.notes_on_filters(needed=False)
    session.check_drawable(len(session.lines))
    found = [AnnotationResult(each.label, each.bundle.tokenizers.source, each.gates) for each in session.opened()]
    return session.result(
        report(found), lambda: shaded_texts(drawn(found), "gate"), notes=notes, text=text(found, paint)
    )


def annotated(each: GatedLine, tokenizer: Tokenizer, paint: Paint = brackets) -> str:
    """Return a sentence with marks. A dropped space that is a token of its own is shown as the sign for it."""
    names = [printable(name) for name in each.line.token_names(tokenizer)]
    marked, text, state = "", "", False  # successive tokens that are all kept, or all dropped, are marked together
    for id_, name, dropped in zip(each.line.plain_ids, names, each.dropped.tolist(), strict=True):
        apart = id_ == EOS or (name.startswith(SPACE) and name != SPACE)
        shown = name.removeprefix(SPACE) if apart else (name if dropped else name.replace(SPACE, " "))
        if text and dropped == state:
            text += f" {shown}" if apart else shown
            continue
        if text:
            marked += paint(text, state) + " " * apart
        text, state = shown, dropped
    return marked + paint(text, state) if text else marked


@dataclass(frozen=True)
class AnnotationResult:
    """The gates of one model on all sentences."""

    model: str
    tokenizer: Tokenizer
    lines: list[GatedLine]


def text(found: Sequence[AnnotationResult], paint: Paint = brackets) -> str:
    """Return all sentences with marks, one line for each model."""
    side = max(len(printable(each.model)) for each in found)
    parts = []
    for places in _together(found):
        parts.append(f"sentence {places[0].line.number + 1}")
        for each, line in zip(found, places, strict=True):
            rate = "no gates" if line.gates is None else f"{line.dropped.mean():.1%}"
            parts.append(f"  {printable(each.model).ljust(side)}  {rate:>8}  {annotated(line, each.tokenizer, paint)}")
    for each in found:
        total = overall_rate(each.lines)
        summary = (
            f"{total.dropped:,} of {total.positions:,} positions dropped, </s> included ({total.sparsity or 0:.1%})"
        )
        gated = any(line.gates is not None for line in each.lines)
        parts.append(f"{printable(each.model)}: {summary if gated else NO_FILTER}")
    return "\n".join(parts)


def _together(found: Sequence[AnnotationResult]) -> Iterator[list[GatedLine]]:
    """Yield, for every sentence that is empty to no model's tokenizer, its gates by each model, in their order."""
    by_number = [{line.line.number: line for line in each.lines} for each in found]
    for number in by_number[0]:
        if all(number in lines for lines in by_number):
            yield [lines[number] for lines in by_number]


def report(found: Sequence[AnnotationResult]) -> Report:
    """Make the table: one row for each position, with its gate."""
    rows = []
    for each in found:
        for line in each.lines:
            names = line.line.token_names(each.tokenizer)
            gates = [None] * len(names) if line.gates is None else line.gates.tolist()
            for i, (name, gate, dropped) in enumerate(zip(names, gates, line.dropped.tolist(), strict=True)):
                rows.append((line.line.number + 1, each.model, i, name, gate, int(dropped)))
    heads = columns("count sentence", "text model", "count position", "text piece", "number gate", "count dropped")
    return Report("annotate", (Table("annotate", "gates of sentences", heads, rows),))


def drawn(found: Sequence[AnnotationResult]) -> list[ShadedText]:
    """Return the texts of the plot, sentence by sentence; of a model without gates, all of them are 1."""
    return [_marked(each, line) for places in _together(found) for each, line in zip(found, places, strict=True)]


def _marked(each: AnnotationResult, line: GatedLine) -> ShadedText:
    names = line.line.token_names(each.tokenizer)
    apart = [name.startswith(SPACE) or id_ == EOS for name, id_ in zip(names, line.line.plain_ids, strict=True)]
    tokens = [" " * space + shown for space, shown in zip(apart, shown_tokens(names), strict=True)]
    gates = np.ones(len(tokens)) if line.gates is None else np.where(line.dropped, 0.0, line.gates)
    return ShadedText(f"{each.model}, sentence {line.line.number + 1}", tokens, gates)
