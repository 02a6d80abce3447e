"""Which places in a word are dropped (Zhang, Titov and Sennrich 2021, Fig. 6).

A word is what stands between spaces, without the punctuation at its ends. In character models the place of a character
is its distance from the beginning over the distance from beginning to end: 0 is the first, 1 the last. In other models
it is the number of the piece within a word of several pieces. The space symbol and ``</s>`` are rows of their own.
Shapes: S source positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from sparsenmt.analysis.gates import GatedLine, Rate, overall_rate
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value

Unit = Literal["characters", "pieces"]

BINS = 10
MOST_PIECES = 5
"""Later pieces share the last row."""

OVERALL, SPACES, END, PUNCTUATION, ALONE = "overall", "space", "</s>", "punctuation", "alone in its word"
_RELATIVE = tuple(f"{i / BINS:.1f} to {(i + 1) / BINS:.1f}" for i in range(BINS))
_PIECES = (*(f"piece {i}" for i in range(1, MOST_PIECES)), f"piece {MOST_PIECES} and later")


@dataclass(frozen=True)
class WordPart:
    """Where a piece stands: in a word (``index`` of ``length``), or outside of all words (``outside`` says what)."""

    index: int = 0
    length: int = 0
    outside: str | None = None


def places(ids: Sequence[int], tokenizer: Tokenizer) -> list[WordPart]:
    """The place of every piece of one sentence, EOS included. (S,)"""
    names = tokenizer.pieces(list(ids))
    words = word_ids(ids, tokenizer).tolist()
    found = [WordPart()] * len(ids)
    for _, group in groupby(range(len(ids)), key=words.__getitem__):
        members = list(group)
        inner = inside_word([names[i] for i in members])
        for order, i in enumerate(members):
            if ids[i] == EOS:
                found[i] = WordPart(outside=END)
            elif names[i] == SPACE:
                found[i] = WordPart(outside=SPACES)
            elif order not in inner:
                found[i] = WordPart(outside=PUNCTUATION)
            else:
                found[i] = WordPart(order - inner.start, len(inner))
    return found


def inside_word(names: Sequence[str]) -> range:
    """The pieces of a word between the punctuation at its ends, by number."""
    lettered = [i for i, name in enumerate(names) if any(c.isalnum() for c in name.removeprefix(SPACE))]
    return range(lettered[0], lettered[-1] + 1) if lettered else range(0)


def place_name(place: WordPart, unit: Unit) -> str:
    """The row in which a place is counted."""
    if place.outside is not None:
        return place.outside
    if place.length == 1:
        return ALONE
    if unit == "characters":
        return _RELATIVE[min(place.index * BINS // (place.length - 1), BINS - 1)]
    return _PIECES[min(place.index, MOST_PIECES - 1)]


def rates(lines: Iterable[GatedLine], tokenizer: Tokenizer, unit: Unit) -> dict[str, Rate]:
    """Positions and drops of every row, in the order of rows; rows without positions are there too."""
    rows = [*(_RELATIVE if unit == "characters" else _PIECES), ALONE, PUNCTUATION, SPACES, END]
    positions, dropped = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0)
    for each in lines:
        for place, closed in zip(places(each.line.ids, tokenizer), each.dropped.tolist(), strict=True):
            name = place_name(place, unit)
            positions[name] += 1
            dropped[name] += closed
    return {name: Rate(positions[name], dropped[name]) for name in rows}


@dataclass(frozen=True)
class PositionResult:
    """One model's rates."""

    model: str
    unit: Unit
    overall: Rate
    rates: dict[str, Rate]


def measure(model: str, lines: Sequence[GatedLine], tokenizer: Tokenizer, unit: Unit) -> PositionResult:
    """Of one model, on lines."""
    return PositionResult(model, unit, overall_rate(lines), rates(lines, tokenizer, unit))


def report(found: Sequence[PositionResult]) -> Report:
    """The rate of every place; and, of the drops inside words of several symbols, the share in each place (Fig. 6)."""
    rows: list[tuple[Value, ...]] = []
    for each in found:
        inside = sum(each.rates[name].dropped for name in _in_words(each.unit))
        rows.append((each.model, each.unit, OVERALL, *_cells(each.overall), None))
        for name, rate in each.rates.items():
            share = rate.dropped / inside if inside and name in _in_words(each.unit) else None
            if rate.positions or name in _in_words(each.unit):
                rows.append((each.model, each.unit, name, *_cells(rate), share))
    columns = (
        *(Column("model"), Column("unit"), Column("place")),
        *(Column("positions", "count"), Column("dropped", "count"), Column("sparsity", "share")),
        Column("share_of_dropped", "share"),
    )
    title = "sparsity rate by place in the word"
    return Report("position", (Table("position", title, columns, tuple(rows), across="model", shown="sparsity"),))


def _in_words(unit: Unit) -> tuple[str, ...]:
    return _RELATIVE if unit == "characters" else _PIECES


def _cells(rate: Rate) -> tuple[Value, ...]:
    return rate.positions, rate.dropped, rate.sparsity


def panels(found: Sequence[PositionResult]) -> list[Panel]:
    """A diagram for each unit: the rate against the place."""
    result = []
    for unit in dict.fromkeys(each.unit for each in found):
        names = _in_words(unit)
        own = [each for each in found if each.unit == unit]
        x = [(i + 0.5) / BINS for i in range(BINS)] if unit == "characters" else [i + 1.0 for i in range(MOST_PIECES)]
        labels = [str(i) for i in range(1, MOST_PIECES)] + [f"{MOST_PIECES}+"]
        result.append(
            Panel(
                "relative position in the word" if unit == "characters" else "piece of a split word",
                "sparsity rate",
                {each.model: list(zip(x, [each.rates[n].sparsity for n in names], strict=True)) for each in own},
                percent="y",
                ticks=() if unit == "characters" else list(zip(x, labels, strict=True)),
            )
        )
    return result
