"""The document of a report on models: everything that the page shows, in plain values; as JSON, it is the same.

Tables and panels are those of `report.tables` and `report.plots`. A number that was not measured is None, never NaN.
Texts are those of the data, whole and unescaped: the page escapes and shortens them.
Shapes: Q queries, K keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from sparsenmt.model.sites import SiteName
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Kind, Table
from sparsenmt.storage.files import read_json, write_text
from sparsenmt.storage.records import typed

Weights = tuple[tuple[float, ...], ...]
"""(Q, K) from 0 to 1; an exact 0 is an attention weight of exactly 0."""


@dataclass(frozen=True)
class Document:
    """A report on one model or several.

    Args:
        title: one line.
        program: name and version of this program.
        models: the labels of the models, in the order of their columns and colours.
        settings: name -> value of the options that the report was made with, and of what else identifies it.
        sections: in their order; those of one group follow each other.
    """

    title: str
    program: str
    models: tuple[str, ...]
    settings: dict[str, str | int | float | None]
    sections: tuple[ReportSection, ...]


@dataclass(frozen=True)
class ReportSection:
    """A section of a report. The page shows its parts in the order of the fields.

    Args:
        name: letters, digits, "-" and "_"; unique in the document: the address of the section in the page.
        title: its heading.
        group: the heading in the contents under which it stands, such as "Quality".
        command: the command line that prints the same figures; empty: there is none.
        missing: the reason why there is nothing to show, and what to do; empty: the section has parts.
        notes: paragraphs below the heading.
        listings: texts in lines, such as recipes.
    """

    name: str
    title: str
    group: str
    command: str = ""
    missing: str = ""
    notes: tuple[str, ...] = ()
    diagrams: tuple[Diagram, ...] = ()
    tables: tuple[Table, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    comparisons: tuple[ComparedSentence, ...] = ()
    kept_words: tuple[SentenceWords, ...] = ()
    attention: tuple[AttentionMaps, ...] = ()
    heads: tuple[HeadDescription, ...] = ()
    alignments: tuple[AlignedSentence, ...] = ()
    listings: tuple[Listing, ...] = ()


@dataclass(frozen=True)
class Diagram:
    """Panels side by side.

    Args:
        caption: a sentence below them, such as that on intervals; may be empty.
    """

    title: str
    panels: tuple[Panel, ...]
    caption: str = ""


@dataclass(frozen=True)
class Matrix:
    """Numbers by two categories, as a table with colours: layer and head, encoder and decoder depth, head and role.

    Args:
        row_label, column_label: names of the axes.
        kind: of the numbers, for their format.
        values: (rows, columns); None: not measured.
        ends: of the scale of colours; None: the least and the largest value.
    """

    title: str
    row_label: str
    rows: tuple[str, ...]
    column_label: str
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    kind: Kind = "number"
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class Listing:
    """A text in lines, such as a recipe or the signatures of scores.

    Args:
        language: of its notation, such as "yaml"; empty: none.
    """

    title: str
    text: str
    language: str = ""


@dataclass(frozen=True)
class ComparedSentence:
    """A sentence on which models differ.

    Args:
        number: line of the source, from 1.
        difference: the number that the table is sorted by at first, the largest on top.
        reference: None: there is none.
    """

    number: int
    source: str
    reference: str | None
    difference: float
    outputs: tuple[ComparedOutput, ...]


@dataclass(frozen=True)
class ComparedOutput:
    """A model's output for a sentence.

    Args:
        scores: name of a metric -> the score of the sentence.
        spans: [first, end) of the characters that differ from the first model's output; for the first model, from the
            second's.
    """

    model: str
    text: str
    scores: dict[str, float | None]
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SentenceWords:
    """The words of a source sentence, as a model's filters keep and drop them.

    Args:
        number: line of the source, from 1.
        output: of the model; empty: not shown.
        note: such as that the sentence was cut; may be empty.
    """

    number: int
    model: str
    words: tuple[MarkedWord, ...]
    reference: str | None = None
    output: str = ""
    note: str = ""


@dataclass(frozen=True)
class MarkedWord:
    """A word with the gates of its tokens: it is kept if a gate is not 0.

    Args:
        text: the word, or ``</s>``.
        tokens: those that it consists of.
        gates: one for each token, in evaluation; empty: the model has no filter.
        tag: part of speech; None: not known.
    """

    text: str
    tokens: tuple[str, ...]
    gates: tuple[float, ...]
    tag: str | None = None


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of one site of a model in one sentence, all layers and heads.

    Args:
        number: line of the source, from 1.
        rows: (Q,) tokens of the queries.
        columns: (K,) tokens of the keys.
        row_words, column_words: index of the word that each token belongs to, not falling; a token that is no part of
            a word has one of its own. Words of weights: the sum over a word's keys, the mean over its queries.
        dropped: (K,) True where a filter closed the key.
        stand_in: True if the first column is the stand-in of the dropped ones.
        maps: of each head, by layer and head.
    """

    number: int
    model: str
    site: SiteName
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_words: tuple[int, ...]
    column_words: tuple[int, ...]
    dropped: tuple[bool, ...]
    stand_in: bool
    maps: tuple[HeadWeights, ...]


@dataclass(frozen=True)
class HeadWeights:
    """The weights of one head.

    Args:
        layer, head: from 1.
    """

    layer: int
    head: int
    weights: Weights


@dataclass(frozen=True)
class HeadDescription:
    """A head in words and numbers, for the caption of its maps.

    Args:
        layer, head: from 1.
        role: such as "previous token"; empty: none.
        transform: such as "entmax"; empty: not known.
        alpha: entmax alpha; None: the transform has none.
        density: share of visible positions that get weight, over the whole text; None: not measured.
    """

    model: str
    site: SiteName
    layer: int
    head: int
    role: str = ""
    transform: str = ""
    alpha: float | None = None
    density: float | None = None


@dataclass(frozen=True)
class AlignedSentence:
    """A sentence and an output with links between their words.

    Args:
        number: line of the source, from 1.
        links: (index of the source word, index of the target word), from 0.
    """

    number: int
    model: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[tuple[int, int], ...] = field(default=())


def write_document(document: Document, path: Path) -> None:
    """Write a document as JSON: an object for each part, with its fields as keys."""
    # Keys in their order, as the order of series is that of their colours; escapes, as a text may have lone surrogates.
    write_text(path, json.dumps(document, default=vars, allow_nan=False) + "\n")


def read_document(path: Path) -> Document:
    """Read a document that `write_document` wrote.

    Raises:
        UserError: the file is damaged.
    """
    hint = "Write it again with `sparsenmt report --json`."
    return typed(read_json(path, hint=hint), Document, path, hint=hint)
