"""Sparsity rates by part of speech (Zhang, Titov and Sennrich 2021, Fig. 5).

Every source position falls into one category. Pieces of split words are BPEH (the first) or BPEO (a later one),
whatever the word's tag; a word of one piece is what its tag says: function, content, punctuation or rest. ``</s>`` and
the lone space symbol are categories of their own. A piece that belongs to no word is "rest".
Shapes: S source positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sparsenmt.analysis.gates import GatedLine, Rate, overall_rate
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tagging.tagsets import TagSet, UnknownTags, report_category
from sparsenmt.data.tagging.word_alignment import align_words
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value

HEAD, LATER, SPACES, END, OVERALL = "BPEH", "BPEO", "space", "</s>", "overall"
CATEGORIES = ("content", "function", "punctuation", "rest", HEAD, LATER, SPACES, END)


@dataclass(frozen=True)
class TaggedLine:
    """The words of a line, their tags, and what the tags count as."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    categories: tuple[str, ...]


def categorise(sentences: Iterable[TaggedSentence], tagset: TagSet | None) -> tuple[list[TaggedLine], str | None]:
    """Look up what the tags count as; and the one warning about unknown tags, if there are some."""
    table = UnknownTags(tagset)
    lines = []
    for each in sentences:
        found = tuple(report_category(table.category(tag)) for tag in each.tags)
        lines.append(TaggedLine(each.words, each.tags, found))
    return lines, table.warning()


@dataclass(frozen=True)
class PosResult:
    """One model's rates."""

    model: str
    overall: Rate
    categories: dict[str, Rate]
    tags: dict[str, Rate]
    """Of words of one piece."""
    words: int
    unaligned: int
    """Words that have no piece of their own."""


def measure(
    model: str,
    lines: Sequence[GatedLine],
    tagged: Sequence[TaggedLine],
    tokenizer: Tokenizer,
    advance: Callable[[int], object] | None = None,
) -> PosResult:
    """Count one model's gates.

    Args:
        tagged: of the same lines.
        advance: told of every sentence.
    """
    positions: Counter[tuple[str, str | None]] = Counter()
    dropped: Counter[tuple[str, str | None]] = Counter()
    words = unaligned = 0
    for each, tags in zip(lines, tagged, strict=True):
        labels, reached, lost = label_positions(each, tags, tokenizer)
        positions.update(labels)
        dropped.update(label for label, closed in zip(labels, each.dropped.tolist(), strict=True) if closed)
        words, unaligned = words + reached, unaligned + lost
        if advance is not None:
            advance(1)
    rates = {label: Rate(count, dropped[label]) for label, count in positions.items()}
    categories = {name: sum((r for (c, _), r in rates.items() if c == name), Rate()) for name in CATEGORIES}
    by_tag: dict[str, Rate] = {}
    for (_, tag), rate in rates.items():
        if tag is not None:
            by_tag[tag] = by_tag.get(tag, Rate()) + rate
    return PosResult(model, overall_rate(lines), categories, by_tag, words, unaligned)


def label_positions(
    each: GatedLine, tagged: TaggedLine, tokenizer: Tokenizer
) -> tuple[list[tuple[str, str | None]], int, int]:
    """(S,) category and, for a word of one piece, its tag; how many words the pieces reach, and how many have none."""
    ids = each.line.ids
    alignment = align_words(tokenizer, ids, tagged.words)
    names = tokenizer.pieces(ids)
    labels: list[tuple[str, str | None]] = []
    for i, word in enumerate(alignment.words.tolist()):
        if ids[i] == EOS:
            labels.append((END, None))
        elif names[i] == SPACE:
            labels.append((SPACES, None))
        elif word < 0:
            labels.append(("rest", None))
        elif alignment.split[i]:
            labels.append((LATER if alignment.later[i] else HEAD, None))
        else:
            labels.append((tagged.categories[word], tagged.tags[word]))
    return labels, alignment.word_count, alignment.unaligned


def report(found: Sequence[PosResult], tagged: Sequence[TaggedLine]) -> Report:
    """Rates per category and per tag; tags in the order of how frequent they are."""
    kinds = {tag: kind for line in tagged for tag, kind in zip(line.tags, line.categories, strict=True)}
    frequent = Counter(tag for line in tagged for tag in line.tags)
    categories: list[tuple[Value, ...]] = []
    tags: list[tuple[Value, ...]] = []
    for each in found:
        categories.append((each.model, OVERALL, *_cells(each.overall)))
        there = [name for name in CATEGORIES if name != SPACES or each.categories[name].positions]
        categories.extend((each.model, name, *_cells(each.categories[name])) for name in there)
        order = sorted(each.tags, key=lambda tag: (-frequent[tag], tag))
        tags.extend((each.model, tag, kinds[tag], *_cells(each.tags[tag])) for tag in order)
    counts = (Column("positions", "count"), Column("dropped", "count"), Column("sparsity", "share"))
    notes = [
        f"{each.model}: {each.unaligned:,} of {each.words:,} words ({each.unaligned / max(each.words, 1):.2%}) could "
        "not be aligned with pieces"
        for each in found
    ]
    first = Table(
        "categories",
        "sparsity rate by category",
        (Column("model"), Column("category"), *counts),
        tuple(categories),
        across="model",
        shown="sparsity",
    )
    second = Table(
        "tags",
        "sparsity rate by tag, words of one piece",
        (Column("model"), Column("tag"), Column("category"), *counts),
        tuple(tags),
        across="model",
        shown="sparsity",
    )
    shares = {each.model: each.unaligned / each.words if each.words else None for each in found}
    return Report("pos", (first, second), tuple(notes), {"unaligned": shares})


def _cells(rate: Rate) -> tuple[Value, ...]:
    return rate.positions, rate.dropped, rate.sparsity


def panels(found: Sequence[PosResult]) -> list[Panel]:
    """Of several models, each category's rate against the overall rate (Fig. 5); of one, bars."""
    names = [name for name in CATEGORIES if any(each.categories[name].positions for each in found)]
    if len(found) == 1:
        places = list(enumerate(names))
        points = [(float(i), found[0].categories[name].sparsity) for i, name in places]
        overall = f"{found[0].model}, overall {found[0].overall.sparsity or 0:.1%}"
        ticks = [(float(i), name) for i, name in places]
        return [Panel("", "sparsity rate", {overall: points}, title=overall, percent="y", style="bars", ticks=ticks)]
    ordered = sorted(found, key=lambda each: each.overall.sparsity or 0.0)
    series = {n: [(each.overall.sparsity or 0.0, each.categories[n].sparsity) for each in ordered] for n in names}
    return [Panel("overall sparsity rate", "sparsity rate of the category", series, percent="xy")]
