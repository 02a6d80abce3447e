"""Sentences with their kept and dropped words marked.

Shapes: S source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparsenmt.analysis.gates import GatedLine, overall_rate
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.errors import printable
from sparsenmt.report.columns import shown_pieces
from sparsenmt.report.plots import Heatmap
from sparsenmt.report.tables import Column, Report, Table, Value

Paint = Callable[[str, bool], str]
"""Marks a stretch of text: (text, dropped) -> text."""


def brackets(text: str, dropped: bool) -> str:
    """Marks without colour."""
    return f"[{text}]" if dropped else text


@dataclass(frozen=True)
class Stretch:
    """Pieces one after the other of which all are kept, or all are dropped."""

    text: str
    dropped: bool
    spaced: bool
    """Whether a space that belongs to nothing stands before it."""


def stretches(each: GatedLine, tokenizer: Tokenizer) -> Iterator[Stretch]:
    """A sentence in stretches. A space that is a piece of its own shows as the sign for it where it is dropped."""
    names = [printable(name) for name in tokenizer.pieces(each.line.ids)]
    text, state, spaced = "", False, False
    for id_, name, dropped in zip(each.line.ids, names, each.dropped.tolist(), strict=True):
        apart = id_ == EOS or (name.startswith(SPACE) and name != SPACE)
        shown = name.removeprefix(SPACE) if apart else (name if dropped else name.replace(SPACE, " "))
        if text and dropped == state:
            text += f" {shown}" if apart else shown
            continue
        if text:
            yield Stretch(text, state, spaced)
        text, state, spaced = shown, dropped, apart and bool(text)
    if text:
        yield Stretch(text, state, spaced)


def annotated(each: GatedLine, tokenizer: Tokenizer, paint: Paint = brackets) -> str:
    """A sentence with marks."""
    return "".join(" " * s.spaced + paint(s.text, s.dropped) for s in stretches(each, tokenizer))


@dataclass(frozen=True)
class AnnotationResult:
    """One model's view of all sentences."""

    model: str
    tokenizer: Tokenizer
    lines: list[GatedLine]


def text(found: Sequence[AnnotationResult], paint: Paint = brackets) -> str:
    """All sentences, each with a line a model."""
    side = max(len(printable(each.model)) for each in found)
    parts = []
    for places in _together(found):
        parts.append(f"sentence {places[0].line.number + 1}")
        for each, line in zip(found, places, strict=True):
            rate = "no gates" if line.gates is None else f"{line.dropped.mean():.1%}"
            parts.append(f"  {printable(each.model).ljust(side)}  {rate:>8}  {annotated(line, each.tokenizer, paint)}")
    for each in found:
        total = overall_rate(each.lines)
        told = f"{total.dropped:,} of {total.positions:,} positions dropped, </s> included ({total.sparsity or 0:.1%})"
        gated = any(line.gates is not None for line in each.lines)
        parts.append(f"{printable(each.model)}: {told if gated else 'no filter decides, nothing is dropped'}")
    return "\n".join(parts)


def _together(found: Sequence[AnnotationResult]) -> Iterator[list[GatedLine]]:
    """Of every sentence in which all models find something, their views."""
    views = [{line.line.number: line for line in each.lines} for each in found]
    for number in views[0]:
        if all(number in view for view in views):
            yield [view[number] for view in views]


def report(found: Sequence[AnnotationResult]) -> Report:
    """Every position in a row, with its gate."""
    rows: list[tuple[Value, ...]] = []
    for each in found:
        for line in each.lines:
            names = each.tokenizer.pieces(line.line.ids)
            gates = [None] * len(names) if line.gates is None else line.gates.tolist()
            for i, (name, gate, dropped) in enumerate(zip(names, gates, line.dropped.tolist(), strict=True)):
                rows.append((line.line.number + 1, each.model, i, name, gate, int(dropped)))
    columns = (
        *(Column("sentence", "count"), Column("model"), Column("position", "count"), Column("piece")),
        *(Column("gate", "number"), Column("dropped", "count")),
    )
    return Report("annotate", (Table("annotate", "gates of sentences", columns, tuple(rows)),))


def grid(found: Sequence[AnnotationResult]) -> list[list[Heatmap]]:
    """For a plot: a line a sentence, a column a model; the colour is the gate."""
    return [[_bar(each, line) for each, line in zip(found, places, strict=True)] for places in _together(found)]


def _bar(each: AnnotationResult, line: GatedLine) -> Heatmap:
    gates = np.ones(len(line.line.ids)) if line.gates is None else line.gates
    names = shown_pieces(each.tokenizer.pieces(line.line.ids))
    title = f"{each.model}, sentence {line.line.number + 1}"
    return Heatmap(title, ["gate"], names, gates[None], line.dropped.tolist())
