"""Sparsity rates by part of speech (Zhang, Titov and Sennrich 2021, Fig. 5).

Every source position falls into one category. The tokens of split words are BPEH (the first) or BPEO (a later one),
whatever the word's tag. The tag of a word of one token decides its category: function, content, punctuation or rest.
``</s>`` and the lone space symbol are categories of their own. A token that belongs to no word is "rest".
Shapes: S source positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sparsenmt.analysis.gates import RATE_COLUMNS, GatedLine, SparsityRate, overall_rate
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.analysis.text_words import REPORT_REMEDY, UNSPACED
from sparsenmt.data.tagging.source_tagger import open_tagger_for_text
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tagging.tagsets import TagSet, report_category, tag_category, unknown_tags_warning
from sparsenmt.data.tagging.word_alignment import align_words
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns

HEAD, LATER, SPACES, END, OVERALL = "BPEH", "BPEO", "space", "</s>", "overall"
LEAST = 20
"""Positions of a category that the plot shows."""
_IN_WORDS = {HEAD: "split words, first token", LATER: "split words, later tokens"}
CATEGORIES = ("content", "function", "punctuation", "rest", HEAD, LATER, SPACES, END)


def measure_pos_rates(
    session: AnalysisSession, *, tagger: str = "hanta", language: str | None = None
) -> AnalysisResult:
    """Make the report ``pos``.

    Args:
        tagger: tagger for a text without tags: hanta, spacy or stanza.
        language: language of the text, for the tagger; None: the first model's source language.
    """
    notes = session.notes_on_filters(needed=True)
    given = [line.tags for line in session.lines if line.tags is not None]
    texts = [line.text for line in session.lines]
    sentences = given or tag(texts, tagger, language or session.text_language)
    tagged, warning = categorise(sentences, sentences[0].tagset)
    if warning is not None:
        notify(warning)
    found = []
    for model in session.opened():
        gated = model.gates
        own = [tagged[each.line.number] for each in gated]
        with progress_bar(f"{model.label}: align", len(gated)) as advance:
            found.append(measure(model.label, gated, own, model.bundle.tokenizers.source, advance))
    origin = {"tags": str(session.tags or session.input) if given else tagger, "tagset": sentences[0].tagset}
    made = report(found, tagged)
    return session.result(made, lambda: curves(panels(found)), settings=origin, notes=notes, caption=_left_out(found))


def tag(lines: Sequence[str], tagger: str, language: str) -> list[TaggedSentence]:
    """Split lines into words, and tag them; UserError if the tagger is not available, or cannot find words."""
    tool = open_tagger_for_text(tagger, language, "--tagger", remedy=REPORT_REMEDY)
    if tool.needs_spaces and is_unspaced(lines):
        raise UserError(
            f"{UNSPACED}, and {tagger} finds words between spaces",
            where="--tagger",
            hint="Choose spacy or stanza and name the --language, or give tags with --tags.",
        )
    sentences = []
    with progress_bar("tag", len(lines)) as advance:
        for line in lines:
            words = tool.tokenize(line)
            sentences.append(TaggedSentence(tuple(words), tuple(tool.tag(words)), text=line, tagset=tool.tagset))
            advance(1)
    return sentences


@dataclass(frozen=True)
class CategorisedLine:
    """The words of a line, and for each word its tag and the category of the tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    categories: tuple[str, ...]


def categorise(sentences: Iterable[TaggedSentence], tagset: TagSet | None) -> tuple[list[CategorisedLine], str | None]:
    """Look up the categories of the tags; returns the lines, and a warning if there are unknown tags."""
    counts: Counter[str] = Counter()
    lines = []
    for each in sentences:
        found = tuple(report_category(tag_category(tag, tagset)) for tag in each.tags)
        lines.append(CategorisedLine(each.words, each.tags, found))
        counts.update(each.tags)
    return lines, unknown_tags_warning(counts, tagset)


@dataclass(frozen=True)
class PosResult:
    """The rates of one model."""

    model: str
    overall: SparsityRate
    categories: dict[str, SparsityRate]
    tags: dict[str, SparsityRate]
    """By tag, of words of one token."""
    words: int
    unaligned: int
    """Words that have no token of their own."""


def measure(
    model: str,
    lines: Sequence[GatedLine],
    tagged: Sequence[CategorisedLine],
    tokenizer: Tokenizer,
    advance: Callable[[int], object] = lambda sentences: None,
) -> PosResult:
    """Count the gates of one model.

    Args:
        tagged: the same lines with their tags.
        advance: called with 1 after every sentence.
    """
    categories = dict.fromkeys(CATEGORIES, SparsityRate())
    by_tag: dict[str, SparsityRate] = {}
    words = unaligned = 0
    for each, tags in zip(lines, tagged, strict=True):
        labels, reached, lost = label_positions(each, tags, tokenizer)
        for (category, tag), closed in zip(labels, each.dropped.tolist(), strict=True):
            categories[category] += SparsityRate(1, closed)
            if tag is not None:
                by_tag[tag] = by_tag.get(tag, SparsityRate()) + SparsityRate(1, closed)
        words, unaligned = words + reached, unaligned + lost
        advance(1)
    return PosResult(model, overall_rate(lines), categories, by_tag, words, unaligned)


def label_positions(
    each: GatedLine, tagged: CategorisedLine, tokenizer: Tokenizer
) -> tuple[list[tuple[str, str | None]], int, int]:
    """Find the category of every position, and the tag of words of one token.

    Returns:
        (S,) categories, each with its tag or None; the number of words; the number of those that have no token.
    """
    ids = each.line.plain_ids
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


def report(found: Sequence[PosResult], tagged: Sequence[CategorisedLine]) -> Report:
    """Make two tables: the rates of categories, and those of tags, the most frequent first."""
    kinds = {tag: kind for line in tagged for tag, kind in zip(line.tags, line.categories, strict=True)}
    frequent = Counter(tag for line in tagged for tag in line.tags)
    categories, tags = [], []
    for each in found:
        categories.append((each.model, OVERALL, *each.overall.cells))
        there = [name for name in CATEGORIES if name != SPACES or each.categories[name].positions]
        categories += [(each.model, name, *each.categories[name].cells) for name in there]
        order = sorted(each.tags, key=lambda tag: (-frequent[tag], tag))
        tags += [(each.model, tag, kinds[tag], *each.tags[tag].cells) for tag in order]
    notes = [
        f"{each.model}: {each.unaligned:,} of {each.words:,} words ({each.unaligned / max(each.words, 1):.2%}) could "
        "not be aligned with tokens"
        for each in found
    ]
    first = (*columns("text model category"), *RATE_COLUMNS)
    second = (*columns("text model tag category"), *RATE_COLUMNS)
    title = "sparsity rate by tag, words of one token"
    tables = (
        Table("categories", "sparsity rate by category", first, categories, across="model", shown="sparsity"),
        Table("tags", title, second, tags, across="model", shown="sparsity"),
    )
    shares = {each.model: each.unaligned / each.words if each.words else None for each in found}
    return Report("pos", tables, tuple(notes), {"unaligned": shares})


def panels(found: Sequence[PosResult]) -> list[Panel]:
    """Draw each category's rate against the overall rates of several models (Fig. 5), or bars for one model.

    Categories of few positions are left out (`_left_out`): one position would fill the axis.
    """
    names = _drawn(found)
    if len(found) == 1:
        rates = [(_IN_WORDS.get(name, name), found[0].categories[name]) for name in names]
        points = [(float(i), rate.sparsity) for i, (_, rate) in enumerate(rates)]
        ticks = [(float(i), f"{name.replace(', ', chr(10))}\n{r.positions:,}") for i, (name, r) in enumerate(rates)]
        overall = found[0].overall.sparsity or 0.0
        level = f"overall, {overall:.1%} of {found[0].overall.positions:,}", overall
        label = "category, and number of source positions"
        bars = {"category": points}
        return [Panel(label, "sparsity rate", bars, percent="y", style="bars", ticks=ticks, level=level)]
    ordered = sorted(found, key=lambda each: each.overall.sparsity or 0.0)
    series = {
        _IN_WORDS.get(name, name): [(each.overall.sparsity or 0.0, each.categories[name].sparsity) for each in ordered]
        for name in names
    }
    return [Panel("overall sparsity rate", "sparsity rate of the category", series, percent="xy")]


def _drawn(found: Sequence[PosResult]) -> list[str]:
    """Return the categories that have enough positions in all models; all that have any where none has enough."""
    least = {name: min(each.categories[name].positions for each in found) for name in CATEGORIES}
    enough = [name for name in CATEGORIES if least[name] >= LEAST]
    return enough or [name for name in CATEGORIES if any(each.categories[name].positions for each in found)]


def _left_out(found: Sequence[PosResult]) -> str:
    """Return the plot's caption, which names the categories that are left out; empty if there are none."""
    counts = {name: max(each.categories[name].positions for each in found) for name in CATEGORIES}
    few = [n for n, count in counts.items() if count and n not in _drawn(found)]
    named = "; ".join(f"{_IN_WORDS.get(name, name)} ({counts[name]:,})" for name in few)
    return f"left out, with fewer than {LEAST} positions: {named}" if few else ""
