"""Sparsity rates by position in the word (Zhang, Titov and Sennrich 2021, Fig. 6).

A word stands between spaces; punctuation at its ends is not part of it. In character models the place of a character is
its distance from the beginning over the distance from beginning to end: 0 is the first, 1 the last. In other models it
is the number of the token within a word of several tokens. In a text without spaces between words, whose words are not
known otherwise (`text_words`), it is the relative position of a token in the sentence. The space symbol and ``</s>``
are rows of their own.
Shapes: S source positions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from sparsenmt.analysis.gates import RATE_COLUMNS, GatedLine, SparsityRate, overall_rate
from sparsenmt.analysis.labels import number_ticks
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.analysis.text_words import TextWords
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.errors import UserError
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, Value, columns

Unit = Literal["characters", "pieces", "sentence"]
"""The place in a word: relative, or the number of the token; or the relative position of a token in the sentence."""

BINS = 10
MOST_PIECES = 5
"""Later tokens share the last row."""

OVERALL, SPACES, END, PUNCTUATION, ALONE = "overall", "space", "</s>", "punctuation", "alone in its word"
ALONE_IN_SENTENCE = "alone in its sentence"
_RELATIVE = tuple(f"{i / BINS:.1f} to {(i + 1) / BINS:.1f}" for i in range(BINS))
_PIECES = (*(f"token {i}" for i in range(1, MOST_PIECES)), f"token {MOST_PIECES} and later")


def measure_position_rates(session: AnalysisSession, *, unit: Unit | None = None) -> AnalysisResult:
    """Make the report ``position``.

    Args:
        unit: None: characters for character models, tokens for others; the sentence where words are not known.

    Raises:
        UserError: a tokenizer does not show where words begin, or no model has a filter.
    """
    notes = session.notes_on_filters(needed=True)
    found = []
    words = session.words
    for model in session.opened():
        tokenizer = model.bundle.tokenizers.source
        kind = model.bundle.recipe.data.tokenizer.kind
        own = unit or ("sentence" if not words.known else "characters" if kind == "char" else "pieces")
        if own != "sentence" and words.lines is None and not tokenizer.keeps_word_boundaries:
            where = str(session.labels[model.label])
            hint = "Leave the model out, or choose --unit sentence."
            raise UserError("its tokenizer does not show where words begin", where=where, hint=hint)
        found.append(measure(model.label, model.gates, tokenizer, own, words))
    in_sentence = all(each.unit == "sentence" for each in found)
    missing = "places are those in the sentence" if in_sentence else "a word is all that stands between spaces"
    notes += words.notes(missing)
    return session.result(report(found), lambda: curves(panels(found)), settings={"words": words.origin}, notes=notes)


@dataclass(frozen=True)
class PlaceInWord:
    """The place of a token: in a word (``index`` of ``length``), or outside of all words (the name of the row)."""

    index: int = 0
    length: int = 0
    outside: str | None = None


def places(line: SourceLine, tokenizer: Tokenizer, words: Sequence[int] | None = None) -> list[PlaceInWord]:
    """Return the place of every token of one sentence, EOS included, (S,).

    Args:
        words: the word of every token; None: words stand between spaces.
    """
    ids, names = line.plain_ids, line.token_names(tokenizer)
    words = TextWords().indices(line, tokenizer).tolist() if words is None else words
    found = [PlaceInWord()] * len(ids)
    for _, group in groupby(range(len(ids)), key=words.__getitem__):
        members = list(group)
        inner = inside_word([names[i] for i in members])
        for order, i in enumerate(members):
            if ids[i] == EOS:
                found[i] = PlaceInWord(outside=END)
            elif names[i] == SPACE:
                found[i] = PlaceInWord(outside=SPACES)
            elif order not in inner:
                found[i] = PlaceInWord(outside=PUNCTUATION)
            else:
                found[i] = PlaceInWord(order - inner.start, len(inner))
    return found


def inside_word(names: Sequence[str]) -> range:
    """Return the numbers of a word's tokens between the punctuation at its ends."""
    lettered = [  # with letters, digits, or marks on letters, such as the vowel signs of Thai
        i
        for i, name in enumerate(names)
        if any(each.isalnum() or unicodedata.category(each)[0] == "M" for each in name.removeprefix(SPACE))
    ]
    return range(lettered[0], lettered[-1] + 1) if lettered else range(0)


def place_name(place: PlaceInWord, unit: Unit) -> str:
    """Return the row in which a place is counted."""
    if place.outside is not None:
        return place.outside
    if place.length == 1:
        return _alone(unit)
    if unit != "pieces":
        return _RELATIVE[min(place.index * BINS // (place.length - 1), BINS - 1)]
    return _PIECES[min(place.index, MOST_PIECES - 1)]


@dataclass(frozen=True)
class PositionResult:
    """The rates of one model."""

    model: str
    unit: Unit
    overall: SparsityRate
    rates: dict[str, SparsityRate]
    """By row, in order; rows without positions are included."""


def measure(
    model: str, lines: Sequence[GatedLine], tokenizer: Tokenizer, unit: Unit, words: TextWords | None = None
) -> PositionResult:
    """Count the gates of one model; ``words``: those of the text; None: they stand between spaces."""
    rows = [*_in_words(unit), _alone(unit), PUNCTUATION, SPACES, END]
    rates = dict.fromkeys(rows, SparsityRate())
    for each in lines:
        if unit == "sentence":  # the only word beside EOS
            groups = [int(id_ == EOS) for id_ in each.line.plain_ids]
        else:
            groups = (words or TextWords()).indices(each.line, tokenizer).tolist()
        found = places(each.line, tokenizer, groups)
        for place, closed in zip(found, each.dropped.tolist(), strict=True):
            rates[place_name(place, unit)] += SparsityRate(1, closed)
    return PositionResult(model, unit, overall_rate(lines), rates)


def report(found: Sequence[PositionResult]) -> Report:
    """Make the table: the rate of every place, and its share of the drops inside words of several symbols (Fig. 6)."""
    rows: list[tuple[Value, ...]] = []
    for each in found:
        inside = sum(each.rates[name].dropped for name in _in_words(each.unit))
        unit = "tokens" if each.unit == "pieces" else each.unit
        rows.append((each.model, unit, OVERALL, *each.overall.cells, None))
        for name, rate in each.rates.items():
            share = rate.dropped / inside if inside and name in _in_words(each.unit) else None
            if rate.positions or name in _in_words(each.unit):
                rows.append((each.model, unit, name, *rate.cells, share))
    heads = (*columns("text model unit place"), *RATE_COLUMNS, *columns("share share_of_dropped"))
    units = {each.unit for each in found}
    whole = "sentence" if units == {"sentence"} else "word or sentence" if "sentence" in units else "word"
    title = f"sparsity rate by place in the {whole}"
    return Report("position", (Table("position", title, heads, rows, across="model", shown="sparsity"),))


def _in_words(unit: Unit) -> tuple[str, ...]:
    """Return the names of the places in a word or sentence of several tokens, in order."""
    return _PIECES if unit == "pieces" else _RELATIVE


def _alone(unit: Unit) -> str:
    """Return the name of the place of a token that is the whole word or sentence."""
    return ALONE_IN_SENTENCE if unit == "sentence" else ALONE


def panels(found: Sequence[PositionResult]) -> list[Panel]:
    """Draw one diagram for each unit: the rate against the place."""
    result = []
    for unit in dict.fromkeys(each.unit for each in found):
        names = _in_words(unit)
        if unit != "pieces":
            whole = "sentence" if unit == "sentence" else "word"
            label, x, ticks = f"relative position in the {whole}", [(i + 0.5) / BINS for i in range(BINS)], []
        else:
            label, x = "place of the token in a split word", [float(i) for i in range(1, MOST_PIECES + 1)]
            ticks = [*number_ticks(range(1, MOST_PIECES)), (float(MOST_PIECES), f"{MOST_PIECES}+")]
        own = [each for each in found if each.unit == unit]
        series = {each.model: list(zip(x, [each.rates[n].sparsity for n in names], strict=True)) for each in own}
        level = None
        if len(own) == 1:
            overall, counts = own[0].overall, [own[0].rates[n].positions for n in names]
            level = f"overall, {overall.sparsity or 0:.1%} of {overall.positions:,}", overall.sparsity or 0.0
            if ticks:
                ticks = [(at, f"{name}\n{count:,}") for (at, name), count in zip(ticks, counts, strict=True)]
                label += ", and its number of source positions"
        result.append(Panel(label, "sparsity rate", series, percent="y", ticks=ticks, level=level))
    return result
